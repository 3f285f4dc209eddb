//! What has had its time.

use super::*;

/// C19: every kind of date is defined.
#[tokio::test]
async fn every_state_expires_and_no_date_means_never() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let mut due = vec![];
    for state in ["requested", "provisioning", "ready", "upgrading", "failed"] {
        let one = app.make_ready("demo", state, None).await;
        r.releases
            .put(&one.namespace, &one.release, seen(1, Some("me")));
        // Set as data: how it came there does not matter here.
        sqlx::query("alter table instance disable trigger instance_guard")
            .execute(&app.db.pool)
            .await
            .unwrap();
        sqlx::query("update instance set state = $2, expires_at = now() where id = $1")
            .bind(one.id)
            .bind(state)
            .execute(&app.db.pool)
            .await
            .unwrap();
        sqlx::query("alter table instance enable trigger instance_guard")
            .execute(&app.db.pool)
            .await
            .unwrap();
        due.push((one.id, state));
    }
    let never = app.make_ready("demo", "never", None).await;
    let later = app.make_ready("demo", "later", None).await;
    sqlx::query("update instance set expires_at = 'infinity' where id = $1")
        .bind(later.id)
        .execute(&app.db.pool)
        .await
        .unwrap();
    let logs = r.tick_well().await;
    let told = events(&logs, "ttl.expired");
    assert_eq!(told.len(), 5);
    for (id, state) in &due {
        let line = told.iter().find(|l| l["instance_id"] == json!(id)).unwrap();
        assert_eq!(
            (
                line["level"].as_str(),
                line["team"].as_str(),
                line["previous_state"].as_str()
            ),
            (Some("INFO"), Some("demo"), Some(*state))
        );
        assert!(
            line["expires_at"].is_string() && line["task_id"].is_string(),
            "{line}"
        );
        assert_eq!(app.state_of(*id).await, "deleting");
        assert_eq!(
            app.open_tasks(*id).await,
            [("deprovision".into(), "ready".into())]
        );
    }
    for one in [&never, &later] {
        assert!(
            app.open_tasks(one.id)
                .await
                .iter()
                .all(|t| t.0 != "deprovision")
        );
    }
}

/// C20.
#[tokio::test]
async fn ten_ticks_over_a_slow_removal_make_one_task_and_what_was_left_is_picked_up() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let one = app.make_ready("demo", "slow", None).await;
    r.releases
        .put(&one.namespace, &one.release, seen(1, Some("me")));
    sqlx::query("update instance set expires_at = now() - interval '1 day' where id = $1")
        .bind(one.id)
        .execute(&app.db.pool)
        .await
        .unwrap();
    for _ in 0..10 {
        r.tick_well().await;
        sqlx::query("update task set state = 'running', token = 1 where instance_id = $1")
            .bind(one.id)
            .execute(&app.db.pool)
            .await
            .unwrap();
    }
    assert_eq!(app.open_tasks(one.id).await.len(), 1);
    let asked: i64 =
        sqlx::query_scalar("select count(*) from instance_event where instance_id = $1")
            .bind(one.id)
            .fetch_one(&app.db.pool)
            .await
            .unwrap();
    assert_eq!(asked, 1);
    // Its task is lost: the same sweep finds it, and a removal that has failed for good waits longer each time.
    let mut pauses = vec![];
    for failures in 0..4 {
        sqlx::query("delete from task")
            .execute(&app.db.pool)
            .await
            .unwrap();
        if failures > 0 {
            sqlx::query("insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason, requested_by, created_at, finished_at)
                         values (gen_random_uuid(), 'deprovision', $1, $2, 'failed', now(), 6, 6, '{}', '', '', now(), now())")
                .bind(one.id).bind(app.team).execute(&app.db.pool).await.unwrap();
        }
        r.tick_well().await;
        let pause: f64 = sqlx::query_scalar(
            "select extract(epoch from run_after - now())::float8 from task where instance_id = $1",
        )
        .bind(one.id)
        .fetch_one(&app.db.pool)
        .await
        .unwrap();
        pauses.push((pause / 60.0).round() as i64);
    }
    assert_eq!(pauses, [0, 2, 4, 8]);
}

/// Q9: a person need not wait out the pause that the tick put before the next try.
#[tokio::test]
async fn a_removal_that_waits_for_its_next_try_is_tried_now() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let one = app.make_ready("demo", "stays", None).await;
    app.sql("update instance set state = 'deleting'").await;
    r.tick_well().await;
    let admin = app.client("admin");
    let retry = format!("/api/v1/instances/{}/retry", one.id);
    assert_eq!(admin.post(&retry, json!({})).await.0, 409, "it is due");
    app.sql("update task set state = 'parked', run_after = now() + interval '6 hours'")
        .await;
    let grace = "its grace is no failure: nobody may cut it short by a retry";
    assert_eq!(admin.post(&retry, json!({})).await.0, 409, "{grace}");
    app.sql("insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason, requested_by, created_at, finished_at)
             select gen_random_uuid(), kind, instance_id, team_id, 'failed', now(), 5, 5, '{}', 'test', 'test', now(), now() from task").await;
    assert_eq!(admin.post(&retry, json!({})).await.0, 202);
    let due: Vec<bool> =
        sqlx::query_scalar("select run_after <= now() and state = 'ready' from task")
            .fetch_all(&app.db.pool)
            .await
            .unwrap();
    assert_eq!(due, [true], "the same task, now");
}

/// C18: a removal does not need what has left the catalog.
#[tokio::test]
async fn what_has_left_the_catalog_still_expires() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let old = app.make_version("0.0.1", false, json!({})).await;
    let one = app.make_ready("demo", "old", Some(old)).await;
    app.sql("insert into catalog_revision (digest) values ('\\x00')")
        .await;
    sqlx::query("update instance set expires_at = now() where id = $1")
        .bind(one.id)
        .execute(&app.db.pool)
        .await
        .unwrap();
    r.tick_well().await;
    assert_eq!(
        app.open_tasks(one.id).await,
        [("deprovision".into(), "ready".into())]
    );
    app.scripted(std::time::Duration::ZERO);
    app.wait(&one.id.to_string(), &["deleted"]).await;
}
