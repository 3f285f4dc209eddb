//! The queue's promises (design §5), one by one, against a real Postgres.

use crate::support::TestApp;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use svcforge::db::queue::{self, Claimed, NewTask, Outcome, Priority, Return};
use svcforge_app::domain::Act;
use uuid::Uuid;

struct Lane {
    app: TestApp,
    id: Uuid,
    me: Uuid,
}

const LEASE: Duration = Duration::from_secs(60);

impl Lane {
    /// An instance whose lane is empty.
    async fn new() -> Self {
        let app = TestApp::new().await;
        let id = app
            .client("admin")
            .ask("cache", "x", json!({}))
            .await
            .parse()
            .unwrap();
        sqlx::query("delete from task")
            .execute(&app.db.pool)
            .await
            .unwrap();
        Self {
            app,
            id,
            me: svcforge::ids::new_id(),
        }
    }

    async fn ask(&self, kind: &str, priority: Priority, after: Option<i64>) -> queue::Enqueued {
        let mut tx = self.app.db.pool.begin().await.unwrap();
        let run_after = after.map(|s| svcforge::clock::now() + jiff::SignedDuration::from_secs(s));
        let new = NewTask {
            kind,
            instance_id: self.id,
            team_id: self.app.team,
            priority,
            run_after,
            max_attempts: 3,
            payload: json!({"after": after}),
            reason: "test",
            requested_by: "test",
            act: Act::PersonChange,
            rollout_type: None,
        };
        let done = queue::enqueue(&mut tx, new).await.unwrap();
        tx.commit().await.unwrap();
        done
    }

    async fn claim(&self) -> Vec<Claimed> {
        let kinds = ["provision", "upgrade", "deprovision"].map(String::from);
        queue::claim(
            &self.app.db.pool,
            self.me,
            &kinds,
            10,
            Priority::Upgrade,
            LEASE,
            LEASE * 10,
        )
        .await
        .unwrap()
    }

    async fn finish(&self, task: &Claimed, outcome: Outcome) -> bool {
        let mut tx = self.app.db.pool.begin().await.unwrap();
        queue::lock_lanes(&mut tx, &[task.instance_id])
            .await
            .unwrap();
        let held = queue::finish(&mut tx, task, outcome, None).await.unwrap();
        tx.commit().await.unwrap();
        held
    }

    async fn back(&self, task: &Claimed, how: Return) -> bool {
        let mut tx = self.app.db.pool.begin().await.unwrap();
        queue::lock_lanes(&mut tx, &[task.instance_id])
            .await
            .unwrap();
        let held = queue::give_back(&mut tx, task, &how).await.unwrap();
        tx.commit().await.unwrap();
        held
    }

    async fn states(&self) -> Vec<(String, String)> {
        sqlx::query_as("select kind, state from task order by kind, state")
            .fetch_all(&self.app.db.pool)
            .await
            .unwrap()
    }

    async fn outcomes(&self) -> Vec<(String, String)> {
        sqlx::query_as("select kind, outcome from task_history order by finished_at")
            .fetch_all(&self.app.db.pool)
            .await
            .unwrap()
    }
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect()
}

#[tokio::test]
async fn q1_one_task_of_an_instance_runs_and_the_next_follows() {
    let lane = Lane::new().await;
    lane.ask("provision", Priority::Person, None).await;
    lane.ask("upgrade", Priority::Upgrade, None).await;
    let first = lane.claim().await;
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].kind, "provision");
    assert!(lane.claim().await.is_empty(), "the lane is busy");
    assert!(lane.finish(&first[0], Outcome::Succeeded).await);
    assert_eq!(lane.claim().await[0].kind, "upgrade");
    let clash = sqlx::query(
        "insert into task (id, kind, instance_id, team_id, state, priority, run_after, max_attempts, payload, reason, requested_by)
         select gen_random_uuid(), 'other', instance_id, team_id, 'ready', 1, now(), 3, '{}', '', '' from task limit 1",
    )
    .execute(&lane.app.db.pool)
    .await;
    assert_eq!(
        svcforge::error::constraint(&clash.unwrap_err()),
        Some("task_lane"),
        "a constraint, not a convention"
    );
}

#[tokio::test]
async fn q2_asks_of_a_kind_merge_and_one_during_a_run_is_kept() {
    let lane = Lane::new().await;
    let first = lane.ask("upgrade", Priority::Upgrade, Some(3600)).await;
    let second = lane.ask("upgrade", Priority::Person, Some(7200)).await;
    assert_eq!((first.id, second.created), (second.id, false));
    let (payload, soon): (serde_json::Value, bool) =
        sqlx::query_as("select payload, run_after < now() + interval '65 minutes' from task")
            .fetch_one(&lane.app.db.pool)
            .await
            .unwrap();
    assert_eq!(
        (payload["after"].as_i64(), soon),
        (Some(7200), true),
        "newest payload, earliest time"
    );
    lane.ask("upgrade", Priority::Person, None).await;
    let running = lane.claim().await;
    assert_eq!(running.len(), 1, "brought forward");
    assert!(
        lane.ask("upgrade", Priority::Person, None).await.created,
        "kept, not swallowed"
    );
    assert_eq!(
        lane.states().await,
        pairs(&[("upgrade", "blocked"), ("upgrade", "running")])
    );
    // A retry that meets it merges into it.
    assert!(
        lane.back(
            &running[0],
            Return::Retry {
                error: "e".into(),
                pause: Duration::from_secs(9)
            }
        )
        .await
    );
    assert_eq!(lane.states().await, pairs(&[("upgrade", "ready")]));
    assert_eq!(lane.outcomes().await, pairs(&[("upgrade", "superseded")]));
}

#[tokio::test]
async fn q3_a_parked_task_stands_in_nobodys_way_and_comes_due() {
    let lane = Lane::new().await;
    lane.ask("upgrade", Priority::Upgrade, Some(1)).await;
    lane.ask("provision", Priority::Repair, None).await;
    let running = lane.claim().await;
    assert_eq!(running[0].kind, "provision");
    lane.finish(&running[0], Outcome::Succeeded).await;
    assert!(lane.claim().await.is_empty(), "not due");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(queue::promote_due(&lane.app.db.pool).await.unwrap(), 1);
    assert_eq!(lane.claim().await[0].kind, "upgrade");
}

#[tokio::test]
async fn q4_deprovision_overtakes() {
    let lane = Lane::new().await;
    lane.ask("provision", Priority::Person, None).await;
    let running = lane.claim().await;
    lane.ask("upgrade", Priority::Upgrade, None).await;
    let mut tx = lane.app.db.pool.begin().await.unwrap();
    queue::overtake(&mut tx, lane.id, "deprovision", "removed")
        .await
        .unwrap();
    tx.commit().await.unwrap();
    lane.ask("deprovision", Priority::Deprovision, None).await;
    assert_eq!(lane.outcomes().await, pairs(&[("upgrade", "cancelled")]));
    let beats = queue::heartbeat(
        &lane.app.db.pool,
        &[running[0].id],
        &[running[0].token],
        LEASE,
    )
    .await
    .unwrap();
    assert_eq!(
        beats[0].stop_reason.as_deref(),
        Some("removed"),
        "what runs is asked to stop"
    );
    lane.finish(&running[0], Outcome::Cancelled).await;
    assert_eq!(lane.claim().await[0].kind, "deprovision");
}

#[tokio::test]
async fn a_better_ask_replaces_a_head_that_has_not_started() {
    let lane = Lane::new().await;
    lane.ask("upgrade", Priority::Upgrade, None).await;
    lane.ask("provision", Priority::Person, None).await;
    assert_eq!(
        lane.states().await,
        pairs(&[("provision", "ready"), ("upgrade", "blocked")])
    );
}

#[tokio::test]
async fn q5_an_attempt_that_lost_its_lease_changes_nothing() {
    let lane = Lane::new().await;
    lane.ask("provision", Priority::Person, None).await;
    let old = lane.claim().await.remove(0);
    sqlx::query("update task set lease_until = now() - interval '1 hour'")
        .execute(&lane.app.db.pool)
        .await
        .unwrap();
    assert_eq!(
        queue::free_expired(&lane.app.db.pool, Duration::from_secs(15))
            .await
            .unwrap(),
        1
    );
    let new = lane.claim().await.remove(0);
    assert_eq!((old.id, old.attempt, new.attempt), (new.id, 1, 2));
    assert_ne!(old.token, new.token);
    assert!(
        queue::heartbeat(&lane.app.db.pool, &[old.id], &[old.token], LEASE)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(!lane.finish(&old, Outcome::Succeeded).await);
    assert!(!lane.back(&old, Return::GiveBack).await);
    let lines = [svcforge::db::task::NewLine {
        at: svcforge::clock::now(),
        step: "s".into(),
        stream: "stdout",
        text: "late".into(),
    }];
    svcforge::db::task::append_log(&lane.app.db.pool, old.id, old.token, &lines)
        .await
        .unwrap();
    svcforge::db::task::begin_step(&lane.app.db.pool, old.id, old.token, 1, "late")
        .await
        .unwrap();
    assert!(
        !svcforge::db::instance::record_revision(
            &lane.app.db.pool,
            lane.id,
            (9, None),
            old.id,
            old.token
        )
        .await
        .unwrap()
    );
    let late: i64 = sqlx::query_scalar(
        "select (select count(*) from task_log) + (select count(*) from task_step)",
    )
    .fetch_one(&lane.app.db.pool)
    .await
    .unwrap();
    assert_eq!(late, 0);
    assert!(lane.finish(&new, Outcome::Succeeded).await);
    assert_eq!(
        lane.outcomes().await,
        pairs(&[("provision", "succeeded")]),
        "river#1302: the finish stands"
    );
}

#[tokio::test]
async fn q6_a_healthy_task_is_never_taken_over_and_a_silent_one_only_after_its_grace() {
    let lane = Lane::new().await;
    lane.ask("provision", Priority::Person, None).await;
    let task = lane.claim().await.remove(0);
    let pool = &lane.app.db.pool;
    assert_eq!(
        queue::free_expired(pool, Duration::from_secs(15))
            .await
            .unwrap(),
        0
    );
    sqlx::query("update task set lease_until = clock_timestamp() - interval '10 seconds'")
        .execute(pool)
        .await
        .unwrap();
    assert_eq!(
        queue::free_expired(pool, Duration::from_secs(15))
            .await
            .unwrap(),
        0,
        "within the grace"
    );
    queue::heartbeat(pool, &[task.id], &[task.token], LEASE)
        .await
        .unwrap();
    sqlx::query("update task set deadline_at = clock_timestamp() - interval '1 hour'")
        .execute(pool)
        .await
        .unwrap();
    assert_eq!(
        queue::free_expired(pool, Duration::from_secs(15))
            .await
            .unwrap(),
        1,
        "the hard deadline"
    );
}

#[tokio::test]
async fn heartbeats_are_heap_only_updates() {
    let lane = Lane::new().await;
    lane.ask("provision", Priority::Person, None).await;
    let task = lane.claim().await.remove(0);
    // One connection, so that its statistics can be flushed.
    let one = sqlx::postgres::PgPoolOptions::new()
        .max_connections(1)
        .connect(&lane.app.db.dsn)
        .await
        .unwrap();
    let read = || async {
        sqlx::query("select pg_stat_force_next_flush()")
            .execute(&one)
            .await
            .unwrap();
        sqlx::query("select 1").execute(&one).await.unwrap();
        let counts =
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'task'";
        sqlx::query_as::<_, (i64, i64)>(counts)
            .fetch_one(&one)
            .await
            .unwrap()
    };
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let before = read().await;
    for _ in 0..20 {
        queue::heartbeat(&one, &[task.id], &[task.token], LEASE)
            .await
            .unwrap();
    }
    let after = read().await;
    let (updates, hot) = (after.0 - before.0, after.1 - before.1);
    assert!(updates >= 20 && hot >= updates - 1, "{hot} of {updates}");
}

#[tokio::test]
async fn q7_q9_a_give_back_and_an_outage_cost_no_attempt() {
    let lane = Lane::new().await;
    lane.ask("provision", Priority::Person, None).await;
    let task = lane.claim().await.remove(0);
    lane.back(&task, Return::GiveBack).await;
    let again = lane.claim().await.remove(0);
    assert_eq!(again.attempt, 1);
    let wait = Return::Wait {
        what: "the Kubernetes API".into(),
        error: "refused".into(),
        pause: Duration::from_millis(1),
    };
    lane.back(&again, wait).await;
    let (waiting, since): (Option<String>, bool) =
        sqlx::query_as("select waiting_for, waiting_since is not null from task")
            .fetch_one(&lane.app.db.pool)
            .await
            .unwrap();
    assert_eq!(
        (waiting.as_deref(), since),
        (Some("the Kubernetes API"), true)
    );
    tokio::time::sleep(Duration::from_millis(20)).await;
    queue::promote_due(&lane.app.db.pool).await.unwrap();
    let third = lane.claim().await.remove(0);
    assert_eq!(third.attempt, 1);
    lane.back(
        &third,
        Return::Retry {
            error: "e".into(),
            pause: Duration::from_millis(1),
        },
    )
    .await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    queue::promote_due(&lane.app.db.pool).await.unwrap();
    assert_eq!(
        lane.claim().await.remove(0).attempt,
        2,
        "a real failure does"
    );
}

#[tokio::test]
async fn q8_an_unknown_kind_is_left_for_somebody_else() {
    let lane = Lane::new().await;
    lane.ask("teleport", Priority::Person, None).await;
    assert!(lane.claim().await.is_empty());
    assert_eq!(lane.states().await, pairs(&[("teleport", "ready")]));
}

#[tokio::test]
async fn many_claimers_over_few_lanes_never_run_two_of_one() {
    let app = TestApp::new().await;
    let admin = app.client("admin");
    for n in 0..6 {
        admin.ask("cache", &format!("c{n}"), json!({})).await;
    }
    let kinds = ["provision", "upgrade"].map(String::from);
    let (ended, began) = (Arc::new(AtomicI64::new(0)), std::time::Instant::now());
    let work = (0..8).map(|_| {
        let (pool, kinds, team) = (app.db.pool.clone(), kinds.clone(), app.team);
        let ended = ended.clone();
        async move {
            let me = svcforge::ids::new_id();
            // By what was done, not by looks: on a busy machine most of those find nothing.
            while ended.load(Ordering::Relaxed) < 150 && began.elapsed() < LEASE {
                for task in queue::claim(&pool, me, &kinds, 3, Priority::Upgrade, LEASE, LEASE * 10)
                    .await
                    .unwrap()
                {
                    let running: i64 = sqlx::query_scalar(
                        "select count(*) from task where instance_id = $1 and state = 'running'",
                    )
                    .bind(task.instance_id)
                    .fetch_one(&pool)
                    .await
                    .unwrap();
                    assert_eq!(running, 1, "solid_queue#761");
                    let mut tx = pool.begin().await.unwrap();
                    let kind = if task.kind == "provision" {
                        "upgrade"
                    } else {
                        "provision"
                    };
                    let new = NewTask {
                        kind,
                        instance_id: task.instance_id,
                        team_id: team,
                        priority: Priority::Person,
                        run_after: None,
                        max_attempts: 3,
                        payload: json!({}),
                        reason: "t",
                        requested_by: "t",
                        act: Act::PersonChange,
                        rollout_type: None,
                    };
                    queue::enqueue(&mut tx, new).await.unwrap();
                    assert!(
                        queue::finish(&mut tx, &task, Outcome::Succeeded, None)
                            .await
                            .unwrap()
                    );
                    tx.commit().await.unwrap();
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    futures::future::join_all(work).await;
    assert_eq!(
        queue::promote_headless(&app.db.pool).await.unwrap(),
        0,
        "no lane was left without a head"
    );
    let done: i64 = sqlx::query_scalar("select count(*) from task_history")
        .fetch_one(&app.db.pool)
        .await
        .unwrap();
    let ended = ended.load(Ordering::Relaxed);
    assert_eq!(done, ended, "each is kept once");
    assert!(ended >= 150, "{ended}");
}

#[tokio::test]
async fn history_has_its_partitions_ahead() {
    let app = TestApp::new().await;
    queue::ensure_partitions(&app.db.pool).await.unwrap();
    queue::ensure_partitions(&app.db.pool).await.unwrap();
    let partitions: i64 = sqlx::query_scalar(
        "select count(*) from pg_inherits where inhparent = 'task_history'::regclass",
    )
    .fetch_one(&app.db.pool)
    .await
    .unwrap();
    assert_eq!(partitions, 4, "this month, two ahead, and the default");
    // Written while nobody had made the months: it moves where it belongs, and does not forbid them.
    let last: String = sqlx::query_scalar("select to_char(date_trunc('month', now() at time zone 'UTC') + interval '2 months', 'YYYY_MM')").fetch_one(&app.db.pool).await.unwrap();
    let drop_it = format!("drop table task_history_{last}");
    sqlx::query(sqlx::AssertSqlSafe(drop_it))
        .execute(&app.db.pool)
        .await
        .unwrap();
    app.sql("insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason, requested_by, created_at, finished_at)
             select gen_random_uuid(), 'provision', gen_random_uuid(), gen_random_uuid(), 'succeeded', now(), 1, 1, '{}', '', '', now(), at from (values (date_trunc('month', now() at time zone 'UTC') + interval '2 months 3 days'), ('2019-01-01')) as v (at)").await;
    // Two at once, as two processes would.
    let (a, b) = tokio::join!(
        queue::ensure_partitions(&app.db.pool),
        queue::ensure_partitions(&app.db.pool)
    );
    a.and(b).unwrap();
    let rows: (i64, i64) = sqlx::query_as(sqlx::AssertSqlSafe(format!(
        "select (select count(*) from task_history_{last}), (select count(*) from task_history_default)"
    )))
    .fetch_one(&app.db.pool)
    .await
    .unwrap();
    assert_eq!(rows, (1, 1));
}

/// Q11: history is dropped by partition, with what its tasks wrote; younger months stay.
#[tokio::test]
async fn q11_history_is_dropped_by_partition() {
    let app = TestApp::new().await;
    let pool = &app.db.pool;
    queue::ensure_partitions(pool).await.unwrap();
    app.sql("create table task_history_2020_01 partition of task_history for values from ('2020-01-01 00:00+00') to ('2020-02-01 00:00+00')").await;
    let old = svcforge::ids::new_id();
    sqlx::query(
        "insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason, requested_by, created_at, finished_at)
         values ($1, 'provision', $1, $1, 'succeeded', now(), 1, 1, '{}', '', '', now(), '2020-01-15'), (gen_random_uuid(), 'provision', $1, $1, 'succeeded', now(), 1, 1, '{}', '', '', now(), now())",
    )
    .bind(old)
    .execute(pool)
    .await
    .unwrap();
    sqlx::query("insert into task_log (task_id, seq, at, step, stream, text) values ($1, 1, now(), '', 'svcforge', 'x')").bind(old).execute(pool).await.unwrap();
    queue::drop_old_partitions(pool, 12).await.unwrap();
    let left: (i64, i64, bool) = sqlx::query_as("select (select count(*) from task_history), (select count(*) from task_log), to_regclass('task_history_2020_01') is null").fetch_one(pool).await.unwrap();
    assert_eq!(left, (1, 0, true));
}

/// The machine decides by what it has read, and a person may have removed the service since: its lane tells.
#[tokio::test]
async fn nothing_but_its_removal_is_asked_of_what_goes() {
    let lane = Lane::new().await;
    let new = |kind| NewTask {
        kind,
        instance_id: lane.id,
        team_id: lane.app.team,
        priority: Priority::Upgrade,
        run_after: None,
        max_attempts: 3,
        payload: json!({}),
        reason: "test",
        requested_by: "reconciler",
        act: Act::Upgrade,
        rollout_type: Some("cache"),
    };
    let pool = &lane.app.db.pool;
    for state in ["requested", "deleting", "deleted"] {
        sqlx::query("update instance set state = $1 where state <> $1")
            .bind(state)
            .execute(pool)
            .await
            .unwrap();
        for kind in ["upgrade", "provision", "deprovision"] {
            let mut tx = pool.begin().await.unwrap();
            let created = queue::enqueue_many(&mut tx, &[new(kind)]).await.unwrap();
            let asked = state == "requested" || kind == "deprovision";
            assert_eq!(created.len(), usize::from(asked), "{kind} while {state}");
            tx.rollback().await.unwrap();
        }
    }
}
