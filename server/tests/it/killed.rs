//! R1: a worker killed -9 at every step of every task. A step's row is written slowly (a trigger), so that the kill meets it: either
//! while it is being written, or a moment after. Each step has a database and a worker process of its own.

use crate::{
    faults::{long, worker},
    support::{TestApp, cluster::helms_of, process::Running, proxy::until},
};
use futures::StreamExt;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};
use uuid::Uuid;

const PROVISION: &str = "provision";
const UPGRADE: &str = "upgrade";
const DEPROVISION: &str = "deprovision";

/// Every step of every task of a chart, as an undisturbed run shows them.
const STEPS: [(&str, &str); 11] = [
    (PROVISION, "Prepare the namespace"),
    (PROVISION, "Make the credentials"),
    (PROVISION, "Run Helm"),
    (PROVISION, "Wait until it serves"),
    (UPGRADE, "Prepare the namespace"),
    (UPGRADE, "Make the credentials"),
    (UPGRADE, "Run Helm"),
    (UPGRADE, "Wait until it serves"),
    (DEPROVISION, "Check the release"),
    (DEPROVISION, "Run Helm"),
    (DEPROVISION, "Wait until nothing is left"),
];

/// Steps at once; each has a worker process, and mostly waits for a lease to end.
const AT_ONCE: usize = 6;

/// A task of that kind is asked for; everything before it is done by a worker that nobody kills.
async fn ask(app: &TestApp, kind: &str, n: usize) -> String {
    let member = app.client("member");
    let id = member
        .ask("cache", &format!("k{n}"), json!({"memory_mb": 64}))
        .await;
    if kind == PROVISION {
        return id;
    }
    let helper = worker(app);
    let ready = app.wait(&id, &["ready"]).await;
    until("at rest", Duration::from_secs(30), async || {
        app.open_tasks(id.parse().unwrap()).await.is_empty()
    })
    .await;
    drop(helper);
    if kind == UPGRADE {
        let patch = member
            .request("PATCH", &format!("/api/v1/instances/{id}"))
            .header("if-match", format!("\"{}\"", ready["version"]))
            .json(&json!({"parameters": {"memory_mb": 128}}));
        let (status, body) = member.send(patch).await;
        assert_eq!(status, 200, "{body}");
    } else {
        assert!(member.delete(&format!("/api/v1/instances/{id}")).await.0 < 300);
    }
    id
}

async fn steps(app: &TestApp, id: &str, kind: &str) -> Vec<Value> {
    let (_, tasks) = app
        .client("admin")
        .get(&format!("/api/v1/instances/{id}/tasks"))
        .await;
    let tasks = tasks["items"].as_array().unwrap();
    let task = tasks.iter().find(|t| t["kind"] == kind);
    task.map_or(vec![], |t| t["steps"].as_array().unwrap().clone())
}

async fn killed_at(kind: &str, step: &str, rounds: usize, seed: u64) {
    let app = TestApp::new().await;
    let mut dice = StdRng::seed_from_u64(seed);
    for statement in [
        "create function slowly() returns trigger language plpgsql as $$ begin perform pg_sleep(1); return new; end $$".to_owned(),
        format!("create trigger slowly after insert on task_step for each row when (new.name = '{step}' and new.attempt = 1) execute function slowly()"),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&app.db.pool).await.unwrap();
    }
    let begins = "select exists (select from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep')";
    for n in 0..rounds {
        let id = ask(&app, kind, n).await;
        let (_, page) = app
            .client("admin")
            .get(&format!("/api/v1/instances/{id}"))
            .await;
        let release = page["release"]["name"].as_str().unwrap().to_owned();
        let most = AtomicUsize::new(0);
        let watch = async {
            loop {
                let of = release.clone();
                // It reads a whole /proc.
                let helms = tokio::task::spawn_blocking(move || helms_of(&of).len());
                most.fetch_max(helms.await.unwrap(), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let attack = async {
            let what = format!("{kind}: {step}, round {n}");
            let mut running: Running = worker(&app);
            until(&what, Duration::from_secs(60), async || {
                sqlx::query_scalar::<_, bool>(begins)
                    .fetch_one(&app.db.pool)
                    .await
                    .unwrap()
            })
            .await;
            if n % 2 == 1 {
                tokio::time::sleep(Duration::from_millis(1000 + dice.random_range(0..250))).await;
            }
            running.0.kill().unwrap();
            running.0.wait().unwrap();
            let killed = Instant::now();
            let _next = worker(&app);
            let wanted = match kind {
                DEPROVISION => "deleted",
                _ => "ready",
            };
            // A lease of 10 s and its grace, scaled from 75 s: 15 s are 90.
            let uuid: Uuid = id.parse().unwrap();
            // One that had just ended needs nobody.
            let taken =
                "select coalesce((select attempt > 1 from task where instance_id = $1), true)";
            until(
                &format!("{what}: taken over"),
                Duration::from_secs(40),
                async || {
                    sqlx::query_scalar::<_, bool>(taken)
                        .bind(uuid)
                        .fetch_one(&app.db.pool)
                        .await
                        .unwrap()
                },
            )
            .await;
            assert!(
                killed.elapsed() < Duration::from_secs(20),
                "{what}: {:?}",
                killed.elapsed()
            );
            until(
                &format!("{what}: converges"),
                Duration::from_secs(60),
                async || {
                    let (_, page) = app
                        .client("admin")
                        .get(&format!("/api/v1/instances/{id}"))
                        .await;
                    assert_ne!(page["state"], "failed", "{what}: {page:#}");
                    page["state"] == wanted && app.open_tasks(uuid).await.is_empty()
                },
            )
            .await;
        };
        tokio::select! {
            () = watch => {}
            () = attack => {}
        }
        assert!(most.into_inner() <= 1, "two Helms on {release}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_killed_at_every_step_of_every_task() {
    // What the table must name: nothing more and nothing less.
    let app = TestApp::new().await;
    let id = ask(&app, UPGRADE, 0).await;
    let undisturbed = worker(&app);
    let uuid: Uuid = id.parse().unwrap();
    let rest = async || app.open_tasks(uuid).await.is_empty();
    until("upgraded", Duration::from_secs(60), rest).await;
    app.client("member")
        .delete(&format!("/api/v1/instances/{id}"))
        .await;
    app.wait(&id, &["deleted"]).await;
    drop(undisturbed);
    let mut seen = BTreeSet::new();
    for kind in [PROVISION, UPGRADE, DEPROVISION] {
        for step in steps(&app, &id, kind).await {
            seen.insert((kind, step["name"].as_str().unwrap().to_owned()));
        }
    }
    let named = STEPS.map(|(kind, step)| (kind, step.to_owned()));
    assert_eq!(seen, named.into());
    // Without `--long` once, in the middle of Helm's run of every task: other tests need the machine too.
    let (rounds, at_once) = if long() { (20, AT_ONCE) } else { (1, 1) };
    let chosen = STEPS
        .iter()
        .enumerate()
        .filter(|(_, (_, step))| long() || *step == "Run Helm");
    futures::stream::iter(chosen)
        .map(|(i, (kind, step))| killed_at(kind, step, rounds, 100 + i as u64))
        .buffer_unordered(at_once)
        .collect::<()>()
        .await;
}
