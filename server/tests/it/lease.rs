//! Who leads (design §6): one at a time, fenced by the epoch, blocked by nobody who is frozen.

use crate::support::{TestApp, TestDb, cluster::svcforge_bin, reconciler::Reconciler};
use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use svcforge::{
    lease::{Candidate, Leading, NotLeading},
    reconcile::{Check, Ticked, tick},
};

#[tokio::test]
async fn one_leads_renews_and_hands_over() {
    let db = TestDb::new().await;
    let (mut a, mut b) = (Candidate::new(&db.dsn), Candidate::new(&db.dsn));
    let first = a.try_lead(None).await.unwrap().unwrap();
    assert_eq!(b.try_lead(None).await.unwrap(), None);
    assert_eq!(
        a.try_lead(Some(first)).await.unwrap(),
        Some(first),
        "renewed"
    );
    a.give_up(first).await;
    let second = b.try_lead(None).await.unwrap().unwrap();
    assert!(second.epoch > first.epoch);
    assert_eq!(
        a.try_lead(Some(first)).await.unwrap(),
        None,
        "its epoch is over"
    );
    assert!(
        matches!(first.begin(&db.pool).await, Err(NotLeading::Lost)),
        "and so are its writes"
    );
    assert!(second.begin(&db.pool).await.is_ok());
}

/// R6 at the level of rows: a leader's write that is under way holds off a takeover, lets the renewal pass, and cannot commit after one.
#[tokio::test]
async fn a_takeover_waits_for_a_write_and_not_for_a_frozen_one() {
    let db = TestDb::new().await;
    let (mut a, mut b) = (Candidate::new(&db.dsn), Candidate::new(&db.dsn));
    let first = a.try_lead(None).await.unwrap().unwrap();
    let tx = first.begin(&db.pool).await.unwrap();
    assert_eq!(
        a.try_lead(Some(first)).await.unwrap(),
        Some(first),
        "a renewal passes a write"
    );
    sqlx::query("update leader set expires_at = clock_timestamp() - interval '1 second'")
        .execute(&db.pool)
        .await
        .unwrap();
    let began = Instant::now();
    let refused = b.try_lead(None).await;
    assert!(
        refused.is_err(),
        "the takeover waits for the write: {refused:?}"
    );
    // The writer is frozen: Postgres ends its session after 5 s, and the successor gets in.
    let second = loop {
        match b.try_lead(None).await {
            Ok(Some(leading)) => break leading,
            _ => assert!(
                began.elapsed() < Duration::from_secs(20),
                "blocked by a frozen leader"
            ),
        }
    };
    assert!(second.epoch > first.epoch);
    assert!(
        tx.commit().await.is_err(),
        "what the frozen one wrote is gone"
    );
}

/// R6: two reconcilers, one of which believes for 1,000 ticks that it still leads: nothing of it is written.
#[tokio::test]
async fn a_thousand_ticks_of_a_leader_that_was_replaced_write_nothing() {
    let app = TestApp::new().await;
    let old = Reconciler::new(&app).await;
    app.sql("update leader set expires_at = clock_timestamp() - interval '1 second'")
        .await;
    let new = Reconciler::new(&app).await;
    assert!(new.cx.leading.epoch > old.cx.leading.epoch);
    let made = app.make_ready("demo", "c", None).await;
    let expired = app.make_ready("demo", "e", None).await;
    sqlx::query("update instance set expires_at = now() where id = $1")
        .bind(expired.id)
        .execute(&app.db.pool)
        .await
        .unwrap();
    for _ in 0..1000 {
        assert!(!Check::Ttl.run(&old.cx).await);
    }
    let Ticked { failed } = tick(&old.cx).await;
    assert_eq!(failed, ["drift", "ttl", "version_drift"]);
    assert!(
        app.open_tasks(made.id).await.is_empty() && app.open_tasks(expired.id).await.is_empty()
    );
    new.releases.put(
        &expired.namespace,
        &expired.release,
        crate::support::reconciler::seen(1, Some("me")),
    );
    new.tick_well().await;
    assert_eq!(
        app.open_tasks(made.id).await.len(),
        1,
        "the leader's tick finds both"
    );
    assert_eq!(app.open_tasks(expired.id).await.len(), 1);
}

fn reconcile(db: &TestDb, args: &[&str]) -> Command {
    let mut command = Command::new(svcforge_bin());
    command
        .arg("reconcile")
        .args(args)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("SVCFORGE_PG_DSN", &db.dsn)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[tokio::test]
async fn once_runs_one_tick_and_exits_0_or_3_naming_the_holder() {
    let app = TestApp::new().await;
    let out = reconcile(&app.db, &["--once"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(0), "{text}");
    let done: Vec<&str> = text
        .lines()
        .filter(|l| l.contains("\"tick.done\""))
        .collect();
    assert_eq!(done.len(), 1, "{text}");
    // It has let go: the next one need not wait.
    let mut other = Candidate::new(&app.db.dsn);
    let leading: Leading = other.try_lead(None).await.unwrap().unwrap();
    let began = Instant::now();
    let out = reconcile(&app.db, &["--once"]).output().unwrap();
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(3), "{words}");
    assert!(
        began.elapsed() >= Duration::from_secs(10),
        "it waits 10 s first"
    );
    let holder: uuid::Uuid = sqlx::query_scalar("select holder from leader")
        .fetch_one(&app.db.pool)
        .await
        .unwrap();
    assert!(words.contains(&holder.to_string()), "{words}");
    other.give_up(leading).await;
}

#[tokio::test]
async fn settings_below_their_floor_are_refused() {
    let db = TestDb::new().await;
    for (args, part) in [
        (&["--once", "--max-in-flight", "0"][..], "--max-in-flight"),
        (
            &["--once", "--reconcile-interval-s", "0"][..],
            "--reconcile-interval-s",
        ),
    ] {
        let out = reconcile(&db, args).output().unwrap();
        assert!(!out.status.success());
        assert!(String::from_utf8_lossy(&out.stderr).contains(part));
    }
    let out = Command::new(svcforge_bin())
        .args(["reconcile", "--once"])
        .env_clear()
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("SVCFORGE_PG_DSN"),
        "only `up` starts a Postgres"
    );
}
