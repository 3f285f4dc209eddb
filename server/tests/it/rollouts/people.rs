//! What people ask while a fleet moves.

use super::*;

#[tokio::test]
async fn a_persons_upgrade_waits_for_no_window_is_refused_while_halted_and_takes_a_slot() {
    let f = Fleet::new(&[("demo", "a"), ("demo", "b")], json!({})).await;
    f.set_window("a", &window(false)).await;
    let member = f.app.client("member");
    let upgrade = async |name: &str| {
        member
            .post(
                &format!("/api/v1/instances/{}/upgrade", f.id(name)),
                json!({}),
            )
            .await
    };
    let admin = f.app.client("admin");
    admin
        .post(
            "/api/v1/rollouts/cache/halt",
            json!({"reason": "bad chart"}),
        )
        .await;
    let (status, body) = upgrade("a").await;
    assert_eq!(status, 409);
    assert!(
        body["detail"].as_str().unwrap().contains("bad chart"),
        "{body}"
    );
    f.resume().await;
    assert_eq!(upgrade("a").await.0, 202);
    assert_eq!(upgrade("b").await.0, 202);
    f.app.scripted(Duration::from_millis(20));
    for name in ["a", "b"] {
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while f
            .app
            .client("admin")
            .get(&format!("/api/v1/instances/{}", f.id(name)))
            .await
            .1["chart_version"]
            != "1.1.0"
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(std::time::Instant::now() < until);
        }
    }
}

/// A waiting upgrade of the machine's never stands in the way of what a person asks.
#[tokio::test]
async fn a_persons_change_takes_a_parked_upgrades_place() {
    let f = Fleet::new(&[("demo", "a")], json!({})).await;
    f.set_window("a", &window(false)).await;
    f.r.tick_well().await;
    assert_eq!(f.upgrades().await["a"], "parked");
    let member = f.app.client("member");
    let (_, page) = member
        .get(&format!("/api/v1/instances/{}", f.id("a")))
        .await;
    let patch = member
        .request("PATCH", &format!("/api/v1/instances/{}", f.id("a")))
        .header("if-match", format!("\"{}\"", page["version"]))
        .json(&json!({"parameters": {"memory_mb": 256}}));
    let (status, body) = member.send(patch).await;
    assert_eq!(status, 200, "{body}");
    f.app.scripted(Duration::ZERO);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while member
        .get(&format!("/api/v1/instances/{}", f.id("a")))
        .await
        .1["parameters"]["memory_mb"]
        != 256
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(std::time::Instant::now() < until);
    }
    assert_eq!(
        f.versions().await["0.9.0"],
        1,
        "its version did not move outside the window"
    );
    f.r.tick_well().await;
    assert_eq!(f.upgrades().await["a"], "parked", "asked again");
}

#[tokio::test]
async fn a_rollback_is_a_task_and_is_held_until_the_catalog_moves_on() {
    let f = Fleet::new(&[("demo", "a")], json!({})).await;
    f.app.scripted(Duration::ZERO);
    sqlx::query("insert into instance_revision (instance_id, entry_revision_id, parameters) select id, entry_revision_id, parameters from instance").execute(&f.app.db.pool).await.unwrap();
    let member = f.app.client("member");
    let at = async |version: &str| {
        let until = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            let page = member
                .get(&format!("/api/v1/instances/{}", f.id("a")))
                .await
                .1;
            if page["chart_version"] == version && page["state"] == "ready" {
                return page;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(std::time::Instant::now() < until, "{page}");
        }
    };
    f.r.tick_well().await;
    at("1.1.0").await;
    let path = format!("/api/v1/instances/{}/rollback", f.id("a"));
    assert_eq!(member.post(&path, json!({})).await.0, 422, "a reason");
    let (status, task) = member.post(&path, json!({"reason": "it is slow"})).await;
    assert_eq!((status, task["kind"].as_str()), (202, Some("rollback")));
    let page = at("0.9.0").await;
    assert!(
        page["hold"].as_str().unwrap().contains("it is slow"),
        "{page}"
    );
    f.r.tick_well().await;
    assert!(f.upgrades().await.is_empty(), "held");
    f.app.make_version("1.1.1", true, json!({})).await;
    f.r.tick_well().await;
    at("1.1.1").await;
}

#[tokio::test]
async fn a_new_instance_during_a_halt_gets_what_serves_elsewhere() {
    let f = Fleet::new(&[("demo", "a")], json!({})).await;
    f.app
        .client("admin")
        .post(
            "/api/v1/rollouts/cache/halt",
            json!({"reason": "bad chart"}),
        )
        .await;
    let member = f.app.client("member");
    let of = async |id: &str| {
        member.get(&format!("/api/v1/instances/{id}")).await.1["chart_version"].clone()
    };
    let warned = async |id: &str| {
        let (_, page) = member.get(&format!("/api/v1/instances/{id}/events")).await;
        page["items"]
            .as_array()
            .unwrap()
            .iter()
            .any(|e| e["kind"] == "instance.warning")
    };
    let first = member.ask("cache", "x", json!({})).await;
    assert_eq!(
        of(&first).await,
        "1.1.0",
        "nothing serves: the halted one, with a warning"
    );
    assert!(warned(&first).await);
    sqlx::query("insert into instance_observed (instance_id, verdict, sentence, parts) values ($1, 'complete', 'serves', '[]')").bind(f.id("a")).execute(&f.app.db.pool).await.unwrap();
    let second = member.ask("cache", "y", json!({})).await;
    assert_eq!(of(&second).await, "0.9.0");
    assert!(warned(&second).await);
}

/// Bad input is refused at write, with the field.
#[tokio::test]
async fn windows_and_pins_are_checked_at_write() {
    let app = TestApp::new().await;
    let member = app.client("member");
    let (status, body) = member.post("/api/v1/instances", json!({"team": "demo", "type": "cache", "name": "x", "maintenance_window": "Sat 02:00-05:00 Mars/Olympus"})).await;
    assert_eq!(
        (status, body["errors"][0]["pointer"].as_str()),
        (422, Some("/maintenance_window"))
    );
    let id = member.ask("cache", "y", json!({})).await;
    let patch = async |body: Value| {
        let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
        let request = member
            .request("PATCH", &format!("/api/v1/instances/{id}"))
            .header("if-match", format!("\"{}\"", page["version"]))
            .json(&body);
        member.send(request).await
    };
    for (body, pointer) in [
        (
            json!({"maintenance_window": "* * * * *"}),
            "/maintenance_window",
        ),
        (
            json!({"pin": {"until": "2020-01-01T00:00:00Z", "reason": "x"}}),
            "/pin/until",
        ),
        (
            json!({"pin": {"until": "2999-01-01T00:00:00Z", "reason": "x"}}),
            "/pin/until",
        ),
        (
            json!({"pin": {"until": "2027-01-01T00:00:00Z", "reason": " "}}),
            "/pin/reason",
        ),
    ] {
        let (status, answer) = patch(body.clone()).await;
        assert_eq!(
            (status, answer["errors"][0]["pointer"].as_str()),
            (422, Some(pointer)),
            "{body}: {answer}"
        );
    }
    let (status, page) = patch(json!({"maintenance_window": "Sat 02:00-05:00 Europe/Berlin", "pin": {"until": "2027-01-01T00:00:00Z", "reason": "the fair"}})).await;
    assert_eq!(status, 200, "{page}");
    assert_eq!(
        json!([
            page["pin"]["reason"],
            page["pin"]["by"],
            page["maintenance_window"]
        ]),
        json!(["the fair", "member", "Sat 02:00-05:00 Europe/Berlin"])
    );
    let (_, page) = patch(json!({"maintenance_window": null, "pin": null})).await;
    assert!(
        page["pin"].is_null()
            && page["maintenance_window"].is_null()
            && page["next_openings"] == json!([])
    );
}

/// However many of one type wait for a slot, another type's are looked at.
#[tokio::test]
async fn a_crowd_that_waits_hides_no_other_type() {
    let names: Vec<String> = (0..520).map(|i| format!("s{i}")).collect();
    let names: Vec<(&str, &str)> = names.iter().map(|n| ("demo", n.as_str())).collect();
    let f = Fleet::new(&names, json!({})).await;
    let member = f.app.client("member");
    let upgrade = async |id: Uuid| {
        let path = format!("/api/v1/instances/{id}/upgrade");
        assert_eq!(member.post(&path, json!({})).await.0, 202);
    };
    for made in f.made.values() {
        upgrade(made.id).await;
    }
    // Of another type, and last in order.
    let other = f.app.make_ready("demo", "other", None).await.id;
    sqlx::query(
        "with old as (insert into entry_revision (id, service_type, kind, chart_version, digest, spec, chart)
                      select gen_random_uuid(), service_type, kind, '0.9.0', '\\x00', spec, chart from entry_revision where service_type = 'web' limit 1
                      returning id)
         update instance set service_type = 'web', parameters = jsonb_build_object('image', 'x'), entry_revision_id = (select id from old) where id = $1",
    )
    .bind(other)
    .execute(&f.app.db.pool)
    .await
    .unwrap();
    upgrade(other).await;
    rollout::admit_once(&f.app.db.pool).await.unwrap();
    let expected = [("upgrade".to_owned(), "ready".to_owned())];
    assert_eq!(f.app.open_tasks(other).await, expected);
    let waiting = f
        .upgrades()
        .await
        .values()
        .filter(|s| *s == "gated")
        .count();
    assert_eq!(waiting, 519, "one of the crowd has its slot");
}
