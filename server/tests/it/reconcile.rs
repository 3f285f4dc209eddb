//! The checks of contract §2.3, with scripted releases and a real Postgres: each line of it that can be seen without a cluster.

use crate::support::{
    TestApp,
    reconciler::{Made, Reconciler, events, seen},
};
use serde_json::json;
use svcforge::{cluster::Listing, provision::Fault};
use uuid::Uuid;

fn outage() -> Fault {
    Fault::Outage {
        what: "the Kubernetes API".into(),
        error: "500".into(),
    }
}

async fn fleet(app: &TestApp, r: &Reconciler, n: usize) -> Vec<Made> {
    let mut made = vec![];
    for i in 0..n {
        let one = app.make_ready("demo", &format!("s{i}"), None).await;
        r.releases
            .put(&one.namespace, &one.release, seen(1, Some("me")));
        made.push(one);
    }
    made
}

#[tokio::test]
async fn a_release_that_is_gone_is_provisioned_again_once() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let made = fleet(&app, &r, 2).await;
    r.tick_well().await;
    assert!(
        app.open_tasks(made[0].id).await.is_empty(),
        "nothing is missing"
    );
    r.releases.remove(&made[0].namespace, &made[0].release);
    let logs = r.tick_well().await;
    let missing = events(&logs, "drift.release_missing");
    assert_eq!(missing.len(), 1);
    let line = missing[0];
    assert_eq!(line["level"], "WARN");
    let expected = json!([made[0].id, "demo", made[0].release, made[0].namespace]);
    assert_eq!(
        json!([
            line["instance_id"],
            line["team"],
            line["release"],
            line["namespace"]
        ]),
        expected
    );
    let (task, reason, act): (Uuid, String, String) =
        sqlx::query_as("select id, reason, act from task where instance_id = $1")
            .bind(made[0].id)
            .fetch_one(&app.db.pool)
            .await
            .unwrap();
    assert_eq!(line["task_id"], json!(task));
    assert_eq!(act, "repair");
    assert!(
        reason.starts_with("drift: ")
            && reason.contains(&made[0].release)
            && reason.contains(&made[0].namespace),
        "{reason}"
    );
    assert_eq!(app.state_of(made[0].id).await, "provisioning");
    let notes = r.notes.kept.lock().unwrap().clone();
    assert_eq!(notes.len(), 1);
    assert_eq!(
        (
            notes[0].kind,
            notes[0].instance_id,
            notes[0].team.as_deref()
        ),
        ("drift.release_missing", Some(made[0].id), Some("demo"))
    );
    // Every task the tick enqueues stores the tick's trace; here no tracer is installed, the trace test looks at it.
    for _ in 0..3 {
        assert!(
            events(&r.tick_well().await, "drift.release_missing").is_empty(),
            "once"
        );
    }
    assert_eq!(
        app.open_tasks(made[0].id).await,
        [("provision".into(), "ready".into())]
    );
    assert!(app.open_tasks(made[1].id).await.is_empty());
}

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

/// C9: a list that lies is corrected by the single read; one that cannot be confirmed is Unknown.
#[tokio::test]
async fn a_list_that_lies_or_cannot_be_confirmed_enqueues_nothing() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let made = fleet(&app, &r, 4).await;
    let truth = r.releases.listing.lock().unwrap().clone();
    *r.releases.alone.lock().unwrap() = Some(truth);
    *r.releases.listing.lock().unwrap() = Listing::default();
    r.tick_well().await;
    *r.releases.find_fails.lock().unwrap() = Some(outage());
    r.tick_well().await;
    for one in &made {
        assert!(app.open_tasks(one.id).await.is_empty());
    }
    let (_, page) = app.client("admin").get("/api/v1/drift").await;
    assert_eq!(page["unknown"].as_array().unwrap().len(), 4, "{page}");
    // An empty list that single reads confirm is the truth, even when it was the only one.
    *r.releases.find_fails.lock().unwrap() = None;
    *r.releases.alone.lock().unwrap() = None;
    sqlx::query("delete from instance_drift")
        .execute(&app.db.pool)
        .await
        .unwrap();
    for one in &made[1..] {
        r.releases
            .put(&one.namespace, &one.release, seen(1, Some("me")));
    }
    r.tick_well().await;
    assert_eq!(app.open_tasks(made[0].id).await.len(), 1);
}

#[tokio::test]
async fn no_more_than_the_brake_allows_and_an_admin_lets_the_rest_go() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let made = fleet(&app, &r, 10).await;
    *r.releases.listing.lock().unwrap() = Listing::default();
    let logs = r.tick_well().await;
    assert_eq!(events(&logs, "drift.release_missing").len(), 3);
    assert_eq!(events(&logs, "drift.brake").len(), 1);
    for _ in 0..2 {
        let logs = r.tick_well().await;
        assert!(
            events(&logs, "drift.release_missing").is_empty(),
            "not within the hour"
        );
        assert_eq!(events(&logs, "drift.brake").len(), 1, "logged every tick");
    }
    let admin = app.client("admin");
    let (_, page) = admin.get("/api/v1/drift").await;
    assert_eq!(page["breaker"]["open"], true);
    let (status, _) = admin
        .post(
            "/api/v1/drift/breaker/release",
            json!({"reason": " ", "list": page["breaker"]["list"]}),
        )
        .await;
    assert_eq!(status, 422, "a reason is required");
    let (status, _) = app
        .client("member")
        .post(
            "/api/v1/drift/breaker/release",
            json!({"reason": "x", "list": ""}),
        )
        .await;
    assert_eq!(status, 403);
    let (status, _) = admin
        .post(
            "/api/v1/drift/breaker/release",
            json!({"reason": "the cluster was rebuilt", "list": "an older one"}),
        )
        .await;
    assert_eq!(status, 409, "the consent covers the list that was shown");
    let (status, _) = admin
        .post(
            "/api/v1/drift/breaker/release",
            json!({"reason": "the cluster was rebuilt", "list": page["breaker"]["list"]}),
        )
        .await;
    assert_eq!(status, 200);
    // Paced: as many a tick as an hour may, until the list that was shown is done; what is gone besides asks anew.
    let mut gone = 3;
    for _ in 0..3 {
        gone += events(&r.tick_well().await, "drift.release_missing").len();
    }
    assert_eq!(gone, 10);
    let late = app.make_ready("demo", "late", None).await;
    let logs = r.tick_well().await;
    assert!(
        events(&logs, "drift.release_missing").is_empty(),
        "the release covered the list that was shown"
    );
    assert!(app.open_tasks(late.id).await.is_empty());
    assert!(made.iter().all(|m| m.id != late.id));
}

/// C22: bounded, then a person is asked.
#[tokio::test]
async fn five_repairs_that_did_not_stick_are_enough() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let one = app.make_ready("demo", "flaps", None).await;
    for round in 0..5 {
        let logs = r.tick_well().await;
        assert_eq!(
            events(&logs, "drift.release_missing").len(),
            1,
            "round {round}"
        );
        sqlx::query("delete from task")
            .execute(&app.db.pool)
            .await
            .unwrap();
        sqlx::query("update instance set state = 'ready' where id = $1")
            .bind(one.id)
            .execute(&app.db.pool)
            .await
            .unwrap();
        // An hour goes by.
        sqlx::query("update drift_repair set at = at - interval '61 minutes'")
            .execute(&app.db.pool)
            .await
            .unwrap();
    }
    for _ in 0..2 {
        let logs = r.tick_well().await;
        assert!(events(&logs, "drift.release_missing").is_empty());
        assert_eq!(
            events(&logs, "drift.not_sticking").len(),
            1,
            "logged every tick"
        );
    }
    let (status, _) = app
        .client("member")
        .post(
            &format!("/api/v1/instances/{}/drift", one.id),
            json!({"choice": "put_back"}),
        )
        .await;
    assert_eq!(status, 200, "a person's choice starts anew");
    assert_eq!(app.open_tasks(one.id).await.len(), 1);
}

#[tokio::test]
async fn who_is_busy_or_paused_is_let_be_and_a_parked_upgrade_is_no_reason_to_wait() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let made = fleet(&app, &r, 6).await;
    let task = |kind: &'static str, state: &'static str, id: Uuid| {
        let pool = app.db.pool.clone();
        let team = app.team;
        async move {
            sqlx::query("insert into task (id, kind, instance_id, team_id, state, priority, run_after, max_attempts, payload, reason, requested_by, token)
                         values (gen_random_uuid(), $1, $2, $3, $4, 1, now() + interval '1 day', 3, '{}', 'test', 'test', case when $4 = 'running' then 1 end)")
                .bind(kind).bind(id).bind(team).bind(state).execute(&pool).await.unwrap();
        }
    };
    task("provision", "parked", made[0].id).await;
    task("rollback", "ready", made[1].id).await;
    task("upgrade", "running", made[2].id).await;
    task("upgrade", "parked", made[3].id).await;
    let (status, _) = app
        .client("member")
        .post(
            &format!("/api/v1/instances/{}/pause", made[4].id),
            json!({"reason": "hands off"}),
        )
        .await;
    assert_eq!(status, 200);
    *r.releases.listing.lock().unwrap() = Listing::default();
    let logs = r.tick_well().await;
    let repaired: Vec<String> = events(&logs, "drift.release_missing")
        .iter()
        .map(|l| l["instance_id"].as_str().unwrap().to_owned())
        .collect();
    let expected: std::collections::BTreeSet<String> =
        [made[3].id, made[5].id].map(|id| id.to_string()).into();
    assert_eq!(
        repaired
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>(),
        expected
    );
    app.client("member")
        .delete(&format!("/api/v1/instances/{}/pause", made[4].id))
        .await;
    assert_eq!(
        events(&r.tick_well().await, "drift.release_missing").len(),
        1,
        "the pause has ended"
    );
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

#[tokio::test]
async fn a_change_from_outside_is_held_until_a_person_chooses() {
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let made = fleet(&app, &r, 3).await;
    for one in &made {
        r.releases
            .put(&one.namespace, &one.release, seen(7, Some("me")));
    }
    let logs = r.tick_well().await;
    assert_eq!(events(&logs, "drift.changed").len(), 3);
    assert!(
        events(&r.tick_well().await, "drift.changed").is_empty(),
        "told once"
    );
    let member = app.client("member");
    let look = async |id: Uuid| member.get(&format!("/api/v1/instances/{id}")).await;
    let (_, page) = look(made[0].id).await;
    assert_eq!(page["drift"], "changed");
    assert!(
        page["hold"].as_str().unwrap().contains("revision 7"),
        "{page}"
    );
    let choose = async |id: Uuid, choice: &str| {
        let (status, body) = member
            .post(
                &format!("/api/v1/instances/{id}/drift"),
                json!({"choice": choice}),
            )
            .await;
        assert_eq!(status, 200, "{body}");
    };
    choose(made[0].id, "keep").await;
    choose(made[1].id, "accept").await;
    choose(made[2].id, "put_back").await;
    assert_eq!(
        app.open_tasks(made[2].id).await,
        [("provision".into(), "ready".into())]
    );
    r.tick_well().await;
    let (_, kept) = look(made[0].id).await;
    assert!(
        kept["hold"].as_str().unwrap().contains("kept by member"),
        "{kept}"
    );
    let (_, accepted) = look(made[1].id).await;
    assert_eq!(
        (accepted["drift"].as_str(), accepted["hold"].as_str()),
        (Some("present"), None)
    );
    let (status, _) = member
        .post(
            &format!("/api/v1/instances/{}/drift", made[1].id),
            json!({"choice": "accept"}),
        )
        .await;
    assert_eq!(status, 409, "nothing to choose any more");
}

#[tokio::test]
async fn orphans_are_told_in_order_never_removed_and_may_be_ignored() {
    let app = TestApp::new().await;
    let mut r = Reconciler::new(&app).await;
    let gone = app.make_ready("demo", "gone", None).await;
    sqlx::query("update instance set state = 'deleting' where id = $1")
        .bind(gone.id)
        .execute(&app.db.pool)
        .await
        .unwrap();
    sqlx::query("update instance set state = 'deleted' where id = $1")
        .bind(gone.id)
        .execute(&app.db.pool)
        .await
        .unwrap();
    r.releases
        .put(&gone.namespace, &gone.release, seen(1, Some("me")));
    r.releases.put("z", "a", seen(1, Some("me")));
    r.releases.put("b", "a", seen(1, Some("me")));
    r.releases.put("elsewhere", "foreign", seen(1, Some("you")));
    r.releases.put("elsewhere", "unmanaged", seen(1, None));
    for _ in 0..2 {
        let logs = r.tick_well().await;
        let told: Vec<(String, String)> = events(&logs, "drift.orphan_release")
            .iter()
            .map(|l| {
                assert_eq!(
                    (l["level"].as_str(), l["action"].as_str()),
                    (Some("ERROR"), Some("none (v1 never deletes)"))
                );
                (
                    l["release"].as_str().unwrap().to_owned(),
                    l["namespace"].as_str().unwrap().to_owned(),
                )
            })
            .collect();
        let expected = [
            ("a".into(), "b".into()),
            ("a".into(), "z".into()),
            (gone.release.clone(), gone.namespace.clone()),
        ];
        assert_eq!(told, expected, "every tick, by name and namespace");
    }
    let admin = app.client("admin");
    let (_, page) = admin.get("/api/v1/drift").await;
    let count = |what: &str| page[what].as_array().unwrap().len();
    assert_eq!(
        (count("orphans"), count("foreign"), count("unmanaged")),
        (3, 1, 1),
        "{page}"
    );
    let id = page["orphans"][0]["id"].as_str().unwrap();
    let (status, _) = admin
        .post(
            &format!("/api/v1/drift/orphans/{id}/ignore"),
            json!({"reason": "mine"}),
        )
        .await;
    assert_eq!(status, 200);
    let logs = r.tick_well().await;
    let levels: Vec<&str> = events(&logs, "drift.orphan_release")
        .iter()
        .map(|l| l["level"].as_str().unwrap())
        .collect();
    assert_eq!(levels, ["INFO", "ERROR", "ERROR"]);
    assert!(
        app.client("owner").get("/api/v1/drift").await.1["orphans"]
            .as_array()
            .unwrap()
            .is_empty(),
        "for admins"
    );
    r.cx.rules.all_orphans = true;
    assert_eq!(
        events(&r.tick_well().await, "drift.orphan_release").len(),
        5,
        "SVCFORGE_ORPHAN_SCOPE=all"
    );
    r.releases.remove("z", "a");
    r.tick_well().await;
    let (_, page) = admin.get("/api/v1/drift").await;
    assert_eq!(
        page["orphans"].as_array().unwrap().len(),
        2,
        "what is gone is not listed"
    );
}

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
