//! The API server is away for whole ticks while twenty tasks are in flight.

use super::*;
use crate::support::app::shipped;
use std::fs;
use svcforge::{catalog, embedded::free_port};

/// A whole `svcforge reconcile` that ticks every three seconds; its log in that file, its metrics on that port.
fn reconciler(app: &TestApp, p: &HttpProxy, own: &str, log: &Path, port: u16) -> Running {
    Running(
        Command::new(svcforge_bin())
            .args(["reconcile", "--reconcile-interval-s", "3"])
            .arg(format!("--metrics-port={port}"))
            .arg(format!("--kubeconfig={}", p.kubeconfig.display()))
            .arg(format!("--own-namespace={own}"))
            .env("SVCFORGE_PG_DSN", &app.db.dsn)
            .stdout(fs::File::create(log).unwrap())
            .spawn()
            .unwrap(),
    )
}

/// The shipped catalog with a newer cache, twenty of which may move at once.
fn raise_cache(to: &Path) {
    let copied = Command::new("cp").arg("-r").arg(shipped()).arg(to).status();
    assert!(copied.unwrap().success());
    for (file, more) in [
        ("cache/entry.yaml", "max_in_flight: 20\n"),
        ("cache/chart/Chart.yaml", ""),
    ] {
        let text = fs::read_to_string(to.join(file)).unwrap();
        let text = text.replace("version: 1.0.0", "version: 1.1.0") + more;
        fs::write(to.join(file), text).unwrap();
    }
}

fn lines(log: &Path) -> Vec<Value> {
    fs::read_to_string(log)
        .unwrap()
        .lines()
        .filter_map(|l| serde_json::from_str(l).ok())
        .collect()
}

async fn heartbeat(port: u16) -> f64 {
    let text = reqwest::get(format!("http://127.0.0.1:{port}/metrics"))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    text.lines()
        .find_map(|l| l.strip_prefix("svcforge_reconciler_last_tick_timestamp_seconds "))
        .unwrap_or_else(|| panic!("no heartbeat: {text}"))
        .parse()
        .unwrap()
}

/// Waits until no task is left; says which are when that takes too long.
async fn all_end(app: &TestApp, at_most: Duration) {
    let began = Instant::now();
    loop {
        let left: Vec<Value> = sqlx::query_scalar("select to_jsonb(k) from task k")
            .fetch_all(&app.db.pool)
            .await
            .unwrap();
        if left.is_empty() {
            return;
        }
        assert!(began.elapsed() < at_most, "{left:#?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Three ticks and twenty tasks: no drift is imagined, TTLs still expire, the loop goes on, tasks wait and none fails, and all
/// end by themselves when the API is back.
#[tokio::test]
async fn an_api_away_for_three_ticks_fails_no_task_and_imagines_no_drift() {
    let app = TestApp::new().await;
    let proxy = HttpProxy::before(&kubeconfig()).await;
    let own = db::installation::load(&app.db.pool).await.unwrap().id;
    let own = format!("svcf-own-{}", &own.to_string()[24..]);
    let env = [("SVCFORGE_NAMESPACE", own.as_str())];
    let worker = worker_at(&app, &proxy.kubeconfig, &env);
    let member = app.client("member");
    let ask = async |name: String| member.ask("cache", &name, json!({"memory_mb": 64})).await;
    let (mut there, mut asked) = (vec![], vec![]);
    for i in 0..17 {
        there.push(ask(format!("there{i}")).await);
    }
    for id in &there {
        app.wait(id, &["ready"]).await;
    }
    let (expiring, there) = there.split_at(2);
    let dir = tempfile::tempdir().unwrap();
    let (log, port) = (dir.path().join("log"), free_port().unwrap());
    let _reconciler = reconciler(&app, &proxy, &own, &log, port);
    until("a tick sees all", Duration::from_secs(30), async || {
        member
            .get(&format!("/api/v1/instances/{}", there[14]))
            .await
            .1["drift"]
            == "present"
    })
    .await;
    let catalog = dir.path().join("catalog");
    raise_cache(&catalog);
    catalog::publish(&app.db.pool, &catalog::load(&catalog).unwrap())
        .await
        .unwrap();

    // Five of each, and the API goes while the first of them run: none of them ends before.
    worker.signal(Signal::SIGSTOP);
    for (i, id) in there.iter().enumerate() {
        let path = format!("/api/v1/instances/{id}");
        let (status, body) = match i % 3 {
            0 => member.delete(&path).await,
            1 => member.post(&format!("{path}/upgrade"), json!({})).await,
            _ => {
                let version = member.get(&path).await.1["version"].clone();
                let patch = member
                    .request("PATCH", &path)
                    .header("if-match", format!("\"{version}\""))
                    .json(&json!({"parameters": {"memory_mb": 96}}));
                member.send(patch).await
            }
        };
        assert!([200, 202].contains(&status), "{status} {body}");
    }
    for i in 0..5 {
        asked.push(ask(format!("new{i}")).await);
    }
    worker.signal(Signal::SIGCONT);
    let running = "select count(*) from task where state = 'running'";
    until("some run", Duration::from_secs(10), async || {
        sqlx::query_scalar::<_, i64>(running)
            .fetch_one(&app.db.pool)
            .await
            .unwrap()
            > 0
    })
    .await;
    proxy.set(Http::Down);
    let (before, from) = (heartbeat(port).await, lines(&log).len());
    let flying = "select count(*) from task where requested_by = 'member'";
    let flying: i64 = sqlx::query_scalar(flying)
        .fetch_one(&app.db.pool)
        .await
        .unwrap();
    assert_eq!(flying, 20, "all are in flight");
    for id in expiring {
        sqlx::query("update instance set expires_at = now() where id = $1::uuid")
            .bind(id)
            .execute(&app.db.pool)
            .await
            .unwrap();
    }
    let busy = "select count(*) from task where state = 'running' or waiting_for is null";
    until(
        "three ticks, and all wait",
        Duration::from_secs(90),
        async || {
            let ticks = lines(&log)[from..]
                .iter()
                .filter(|l| l["event"] == "tick.done")
                .count();
            let busy: i64 = sqlx::query_scalar(busy)
                .fetch_one(&app.db.pool)
                .await
                .unwrap();
            ticks >= 4 && busy == 0
        },
    )
    .await;
    let said = lines(&log)[from..].to_vec();
    let failed = events(&said, "check.failed");
    // The tick that the cut met may have listed before it.
    assert!(failed.len() >= 3, "{said:#?}");
    assert!(failed.iter().all(|l| l["check"] == "drift"), "{failed:#?}");
    assert_eq!(
        events(&said, "ttl.expired").len(),
        2,
        "TTLs expire: {said:#?}"
    );
    assert!(
        heartbeat(port).await > before + 5.0,
        "the heartbeat goes on"
    );
    for id in expiring {
        assert_eq!(
            app.open_tasks(id.parse().unwrap()).await[0].0,
            "deprovision"
        );
    }
    proxy.set(Http::Pass);

    all_end(&app, Duration::from_secs(100)).await;
    let ended: Vec<(String, String, Option<String>)> =
        sqlx::query_as("select kind, outcome, error from task_history where outcome = 'failed'")
            .fetch_all(&app.db.pool)
            .await
            .unwrap();
    assert!(ended.is_empty(), "{ended:#?}");
    let repairs: i64 =
        sqlx::query_scalar("select count(*) from task_history where reason like 'drift:%'")
            .fetch_one(&app.db.pool)
            .await
            .unwrap();
    let imagined = ["drift.release_missing", "drift.changed", "drift.brake"];
    let said = lines(&log);
    assert_eq!(repairs, 0, "no drift task");
    assert!(imagined.iter().all(|e| events(&said, e).is_empty()));
    for (i, id) in there.iter().enumerate() {
        let want = if i % 3 == 0 { "deleted" } else { "ready" };
        let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
        assert_eq!(page["state"], want, "{page:#}");
    }
    for id in &asked {
        app.wait(id, &["ready"]).await;
    }
    for id in expiring {
        app.wait(id, &["deleted"]).await;
    }
}

/// Whatever an attempt is doing when the API goes away, it is the API's fault and costs no attempt.
#[tokio::test]
async fn an_api_that_goes_at_any_moment_costs_no_attempt() {
    let app = TestApp::new().await;
    let proxy = HttpProxy::before(&kubeconfig()).await;
    let _worker = worker_at(&app, &proxy.kubeconfig, &[]);
    let mut dice = StdRng::seed_from_u64(20_261_203);
    let member = app.client("member");
    let mut ids = vec![];
    for i in 0..4 {
        let asked = json!({"memory_mb": 64});
        ids.push(member.ask("cache", &format!("any{i}"), asked).await);
    }
    for id in &ids {
        app.wait(id, &["ready"]).await;
    }
    let mut last = None;
    let rounds = if long() { 30 } else { 4 };
    for round in 0..rounds {
        for id in &ids {
            let path = format!("/api/v1/instances/{id}");
            let version = member.get(&path).await.1["version"].clone();
            let patch = member
                .request("PATCH", &path)
                .header("if-match", format!("\"{version}\""))
                .json(&json!({"parameters": {"memory_mb": 65 + round}}));
            let (status, body) = member.send(patch).await;
            assert_eq!(status, 200, "{body}");
        }
        // One comes, and the one of the round before goes.
        let asked = json!({"memory_mb": 64});
        let newest = member.ask("cache", &format!("r{round}"), asked).await;
        if let Some(last) = last.replace(newest) {
            member.delete(&format!("/api/v1/instances/{last}")).await;
        }
        tokio::time::sleep(Duration::from_millis(dice.random_range(0..2500))).await;
        proxy.set(Http::Down);
        tokio::time::sleep(Duration::from_millis(dice.random_range(500..2500))).await;
        proxy.set(Http::Pass);
        all_end(&app, Duration::from_secs(60)).await;
        let punished: Vec<String> = sqlx::query_scalar(
            "select message from instance_event where kind = 'task.attempt_failed'",
        )
        .fetch_all(&app.db.pool)
        .await
        .unwrap();
        assert!(punished.is_empty(), "round {round}: {punished:#?}");
    }
    // A refusal would end a task at once, and without an attempt that failed.
    let failed: Vec<(String, Option<String>)> =
        sqlx::query_as("select kind, error from task_history where outcome <> 'succeeded'")
            .fetch_all(&app.db.pool)
            .await
            .unwrap();
    assert!(failed.is_empty(), "{failed:#?}");
    let states = "select state, count(*) from instance group by 1 order by 1";
    let states: Vec<(String, i64)> = sqlx::query_as(states)
        .fetch_all(&app.db.pool)
        .await
        .unwrap();
    let (deleted, ready) = (rounds - 1, 5);
    assert_eq!(
        states,
        [("deleted".to_owned(), deleted), ("ready".to_owned(), ready)]
    );
}
