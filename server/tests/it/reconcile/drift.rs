//! What is gone, changed or nobody's.

use super::*;

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
