//! Checks that fail, and what goes on beside them.

use super::*;

/// C9, contract 2.1: a listing that fails is `check.failed` of drift and of nothing else.
#[tokio::test]
async fn an_api_that_is_away_stops_neither_ttl_nor_heartbeat() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let made = fleet(&app, &r, 3).await;
    sqlx::query("update instance set expires_at = now() - interval '1 hour' where id = $1")
        .bind(made[2].id)
        .execute(&app.db.pool)
        .await
        .unwrap();
    *r.releases.list_fails.lock().unwrap() = Some(outage());
    let (ticked, logs) = r.tick().await;
    assert_eq!(ticked.failed, ["drift"]);
    let failed = events(&logs, "check.failed");
    assert_eq!(
        (
            failed.len(),
            failed[0]["check"].as_str(),
            failed[0]["level"].as_str()
        ),
        (1, Some("drift"), Some("ERROR"))
    );
    assert!(failed[0]["error"].as_str().unwrap().contains("500"));
    assert_eq!(events(&logs, "ttl.expired").len(), 1);
    assert_eq!(events(&logs, "tick.done").len(), 1);
    assert!(
        svcforge::telemetry::last_tick()
            .is_some_and(|at| svcforge::clock::now().as_second() - at < 5)
    );
    assert!(
        app.open_tasks(made[0].id).await.is_empty(),
        "no drift task from it"
    );
    let (_, page) = app.client("admin").get("/api/v1/drift").await;
    assert!(
        page["sweep_error"].as_str().unwrap().contains("500"),
        "{page}"
    );
    let (_, instance) = app
        .client("admin")
        .get(&format!("/api/v1/instances/{}", made[0].id))
        .await;
    assert_eq!(instance["drift"], "unknown", "nobody could look");
}

#[tokio::test]
async fn a_notification_that_fails_abandons_nothing() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    fleet(&app, &r, 2).await;
    *r.releases.listing.lock().unwrap() = Listing::default();
    *r.notes.refuse.lock().unwrap() = true;
    let logs = r.tick_well().await;
    assert_eq!(events(&logs, "drift.release_missing").len(), 2);
    let failed = events(&logs, "notify.failed");
    assert_eq!(failed.len(), 2);
    assert!(
        failed.iter().all(|l| l["level"] == "ERROR"
            && l["instance_id"].is_string()
            && l["error"].is_string())
    );
}

/// The gauges are read last, and a failure of theirs is no failed tick.
#[tokio::test]
async fn a_check_that_panics_or_a_database_that_is_away_is_a_failed_check() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    app.sql("alter table instance rename to instance_away")
        .await;
    let (ticked, logs) = r.tick().await;
    assert_eq!(ticked.failed, ["drift", "ttl", "version_drift"]);
    assert_eq!(events(&logs, "check.failed").len(), 3);
    assert_eq!(events(&logs, "gauges.failed").len(), 1);
    assert!(events(&logs, "gauges.failed")[0]["error"].is_string());
    assert_eq!(events(&logs, "tick.done").len(), 1);
    app.sql("alter table instance_away rename to instance")
        .await;
    r.tick_well().await;
}

/// A lost worker's tasks go back; the event says how long its lease was.
#[tokio::test]
async fn lost_leases_are_freed_by_the_tick() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let one = app.make_ready("demo", "lost", None).await;
    r.releases
        .put(&one.namespace, &one.release, seen(1, Some("me")));
    assert!(
        events(&r.tick_well().await, "lease.expired").is_empty(),
        "only if any were freed"
    );
    sqlx::query("insert into task (id, kind, instance_id, team_id, state, priority, run_after, max_attempts, payload, reason, requested_by, token, lease_until, deadline_at)
                 values (gen_random_uuid(), 'provision', $1, $2, 'running', 1, now(), 3, '{}', 'test', 'test', 1, now() - interval '1 hour', now() + interval '1 hour')")
        .bind(one.id).bind(app.team).execute(&app.db.pool).await.unwrap();
    let logs = r.tick_well().await;
    let told = events(&logs, "lease.expired");
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0]["tasks_freed"].as_i64(), told[0]["level"].as_str()),
        (Some(1), Some("WARN"))
    );
    assert!(told[0]["lease_seconds"].is_u64());
    assert_eq!(
        app.open_tasks(one.id).await,
        [("provision".into(), "ready".into())]
    );
}
