//! P1–P5: the queue, through the very functions that workers use.

use super::{at, result, setup};
use serde_json::json;
use sqlx::{PgExecutor, PgPool};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use svcforge::{
    db::queue::{self, Claimed, NewTask, Outcome, Priority},
    queue::{Wake, listen},
};
use svcforge_app::domain::Act;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const LEASE: Duration = Duration::from_secs(60);

fn task(lane: &(Uuid, Uuid)) -> NewTask<'static> {
    NewTask {
        kind: "provision",
        instance_id: lane.0,
        team_id: lane.1,
        priority: Priority::Person,
        run_after: None,
        max_attempts: 3,
        payload: json!({}),
        reason: "bench",
        requested_by: "bench",
        act: Act::PersonChange,
        rollout_type: None,
    }
}

async fn fill(pool: &PgPool, lanes: &[(Uuid, Uuid)]) -> anyhow::Result<()> {
    for batch in lanes.chunks(2000) {
        let tasks: Vec<NewTask<'_>> = batch.iter().map(task).collect();
        let mut tx = pool.begin().await?;
        queue::enqueue_many(&mut tx, &tasks).await?;
        tx.commit().await?;
    }
    sqlx::query("vacuum analyze task").execute(pool).await?;
    Ok(())
}

async fn claim(pool: impl PgExecutor<'_>, me: Uuid, limit: i64) -> sqlx::Result<Vec<Claimed>> {
    queue::claim(
        pool,
        me,
        &["provision".into()],
        limit,
        Priority::Upgrade,
        LEASE,
        LEASE * 10,
    )
    .await
}

/// Claims and finishes until nothing is left: `workers` at once, `batch` at a time.
async fn burn(pool: &PgPool, workers: usize, batch: i64) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut running = tokio::task::JoinSet::<sqlx::Result<()>>::new();
    for _ in 0..workers {
        let pool = pool.clone();
        running.spawn(async move {
            let (me, mut own) = (svcforge::ids::new_id(), pool.acquire().await?);
            loop {
                let tasks = claim(&mut *own, me, batch).await?;
                if tasks.is_empty() {
                    return Ok(());
                }
                if batch > 1 {
                    queue::finish_many(&pool, &tasks, Outcome::Succeeded).await?;
                    continue;
                }
                for task in &tasks {
                    let mut db = pool.acquire().await?;
                    queue::finish(&mut db, task, Outcome::Succeeded, None).await?;
                }
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(began.elapsed())
}

/// P1.
pub async fn batched(dsn: &str, jobs: i64) -> anyhow::Result<()> {
    let (pool, _) = setup::fresh(dsn, 12).await?;
    setup::instances(&pool, jobs).await?;
    fill(&pool, &setup::lanes(&pool).await?).await?;
    let took = burn(&pool, 6, 200).await?;
    let kept: i64 =
        sqlx::query_scalar("select count(*) from task_history where outcome = 'succeeded'")
            .fetch_one(&pool)
            .await?;
    anyhow::ensure!(kept == jobs, "{kept} of {jobs} are in the history");
    result(
        "P1",
        "svcforge, batched, fenced, kept",
        jobs as f64 / took.as_secs_f64(),
        "jobs/s",
    );
    Ok(())
}

/// P2.
pub async fn one_by_one(dsn: &str, jobs: i64) -> anyhow::Result<()> {
    let (pool, _) = setup::fresh(dsn, 16).await?;
    setup::instances(&pool, jobs).await?;
    fill(&pool, &setup::lanes(&pool).await?).await?;
    let took = burn(&pool, 10, 1).await?;
    result(
        "P2",
        "svcforge, one at a time",
        jobs as f64 / took.as_secs_f64(),
        "jobs/s",
    );
    Ok(())
}

/// P3: from before the enqueueing transaction begins to the claim's answer, on an idle queue, woken by NOTIFY.
pub async fn latency(dsn: &str) -> anyhow::Result<()> {
    let (pool, own) = setup::fresh(dsn, 8).await?;
    setup::instances(&pool, 500).await?;
    let lanes = setup::lanes(&pool).await?;
    let (wake, stop) = (Wake::default(), CancellationToken::new());
    tokio::spawn(listen(own, wake.clone(), stop.clone()));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let changes = svcforge::changes::Changes::start(pool.clone());
    let (tell, mut told) = tokio::sync::mpsc::channel(1);
    let worker = pool.clone();
    tokio::spawn(async move {
        let me = svcforge::ids::new_id();
        let Ok(mut own) = worker.acquire().await else {
            return;
        };
        loop {
            wake.work.notified().await;
            while let Ok(tasks) = claim(&mut *own, me, 1).await {
                let Some(task) = tasks.into_iter().next() else {
                    break;
                };
                if tell.send((Instant::now(), task)).await.is_err() {
                    return;
                }
            }
        }
    });
    let mut times = vec![];
    for lane in &lanes {
        let began = Instant::now();
        let mut tx = pool.begin().await?;
        queue::enqueue(&mut tx, task(lane)).await?;
        tx.commit().await?;
        changes.work();
        let (started, task) = told
            .recv()
            .await
            .ok_or_else(|| anyhow::anyhow!("the worker has ended"))?;
        times.push((started - began).as_secs_f64() * 1000.0);
        let mut db = pool.acquire().await?;
        queue::finish(&mut db, &task, Outcome::Succeeded, None).await?;
        drop(db);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    result(
        "P3",
        "svcforge, enqueue → started, p50",
        at(&mut times, 0.5),
        "ms",
    );
    result(
        "P3",
        "svcforge, enqueue → started, p99",
        at(&mut times, 0.99),
        "ms",
    );
    Ok(())
}

/// P4: 100k tasks blocked behind 200 busy instances; claims of what is ready besides.
pub async fn blocked(dsn: &str, jobs: i64) -> anyhow::Result<()> {
    let (pool, _) = setup::fresh(dsn, 12).await?;
    setup::instances(&pool, 20_200).await?;
    let lanes = setup::lanes(&pool).await?;
    let (busy, free) = lanes.split_at(200);
    // Each busy lane has a running head and many kinds that wait behind it.
    fill(&pool, busy).await?;
    anyhow::ensure!(claim(&pool, svcforge::ids::new_id(), 200).await?.len() == 200);
    sqlx::query(
        "insert into task (id, kind, instance_id, team_id, state, priority, run_after, max_attempts, payload, reason, requested_by, act)
         select gen_random_uuid(), 'k' || n, i.id, i.team_id, 'blocked', 1, now(), 3, '{}', 'bench', 'bench', 'person_change'
         from instance i cross join generate_series(1, $2) n where i.id = any($1)",
    )
    .bind(busy.iter().map(|l| l.0).collect::<Vec<_>>())
    .bind(i32::try_from(jobs / 200)?)
    .execute(&pool)
    .await?;
    // A hundred thousand rows at once: Postgres must know of them, as it would where they came one by one.
    sqlx::query("vacuum analyze task").execute(&pool).await?;
    fill(&pool, free).await?;
    for workers in [1, 4] {
        // Half of what is ready each.
        let each = free.len() / 2 / workers;
        let began = Instant::now();
        let mut running = tokio::task::JoinSet::<sqlx::Result<Vec<f64>>>::new();
        for _ in 0..workers {
            let pool = pool.clone();
            running.spawn(async move {
                // As a worker does, which keeps the connection that it claims by.
                let mut own = pool.acquire().await?;
                let (mut times, me) = (vec![], svcforge::ids::new_id());
                while times.len() < each {
                    let one = Instant::now();
                    if claim(&mut *own, me, 1).await?.is_empty() {
                        break;
                    }
                    times.push(one.elapsed().as_secs_f64() * 1000.0);
                }
                Ok(times)
            });
        }
        let mut times = vec![];
        while let Some(done) = running.join_next().await {
            times.extend(done??);
        }
        let rate = times.len() as f64 / began.elapsed().as_secs_f64();
        let what = format!("svcforge, claims behind blocked lanes, {workers} at once");
        result("P4", &what, rate, "claims/s");
        result("P4", &format!("{what}, p99"), at(&mut times, 0.99), "ms");
    }
    // The peer: one-per-instance by asking whether an earlier open one exists, over the same rows.
    let began = Instant::now();
    let mut claimed = 0;
    while began.elapsed() < Duration::from_secs(10) && claimed < 2000 {
        let done = sqlx::query(
            "update task set state = 'running', token = 1 where id = (
                select id from task t where state in ('ready', 'blocked') and not exists (
                    select from task e where e.instance_id = t.instance_id and e.id <> t.id and e.state in ('ready', 'running', 'blocked') and (e.run_after, e.id) < (t.run_after, t.id))
                order by priority, run_after, id limit 1 for update skip locked)",
        )
        .execute(&pool)
        .await?;
        if done.rows_affected() == 0 {
            break;
        }
        claimed += 1;
    }
    result(
        "P4",
        "a NOT EXISTS queue, the same rows",
        f64::from(claimed) / began.elapsed().as_secs_f64(),
        "claims/s",
    );
    Ok(())
}

/// P5: what telling costs an enqueue. The two take turns of half a second in one run, so that whatever else moves moves both; the
/// medians of the turns are compared.
pub async fn notify_cost(dsn: &str) -> anyhow::Result<()> {
    const TURN: Duration = Duration::from_millis(500);
    const TURNS: usize = 80;
    let (pool, own) = setup::fresh(dsn, 12).await?;
    setup::instances(&pool, 100_000).await?;
    let lanes = setup::lanes(&pool).await?;
    let stop = CancellationToken::new();
    tokio::spawn(listen(own, Wake::default(), stop.clone()));
    let changes = svcforge::changes::Changes::start(pool.clone());
    let (turn, done) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new([const { AtomicU64::new(0) }; TURNS]),
    );
    let mut running = tokio::task::JoinSet::<sqlx::Result<()>>::new();
    for part in lanes.chunks(lanes.len() / 8) {
        let (pool, changes, part) = (pool.clone(), changes.clone(), part.to_vec());
        let (turn, done, stop) = (turn.clone(), done.clone(), stop.clone());
        running.spawn(async move {
            for lane in &part {
                if stop.is_cancelled() {
                    break;
                }
                let mut tx = pool.begin().await?;
                queue::enqueue(&mut tx, task(lane)).await?;
                tx.commit().await?;
                let now = turn.load(Ordering::Relaxed);
                if now % 2 == 1 {
                    changes.work();
                }
                done[now].fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    let mut rates = [vec![], vec![]];
    for this in 0..TURNS {
        turn.store(this, Ordering::Relaxed);
        let began = Instant::now();
        tokio::time::sleep(TURN).await;
        let rate = done[this].load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
        // The first turns warm up.
        if this > 3 && rate > 0.0 {
            rates[this % 2].push(rate);
        }
    }
    let dry = running.try_join_next().is_some();
    stop.cancel();
    while let Some(end) = running.join_next().await {
        end??;
    }
    anyhow::ensure!(!dry, "too few lanes for this machine");
    let [mut without, mut with] = rates;
    let (without, with) = (at(&mut without, 0.5), at(&mut with, 0.5));
    result("P5", "svcforge, enqueues without NOTIFY", without, "tx/s");
    result("P5", "svcforge, enqueues with NOTIFY", with, "tx/s");
    result(
        "P5",
        "what NOTIFY costs",
        (1.0 - with / without) * 100.0,
        "%",
    );
    Ok(())
}
