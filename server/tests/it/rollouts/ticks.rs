//! What a tick schedules: order, caps, windows, halts.

use super::*;

#[tokio::test]
async fn the_own_team_first_and_no_more_than_the_cap() {
    let f = Fleet::new(
        &[
            ("alpha", "a1"),
            ("alpha", "a2"),
            ("platform", "p1"),
            ("platform", "p2"),
        ],
        json!({"max_in_flight": 2}),
    )
    .await;
    let logs = f.r.tick_well().await;
    let told = events(&logs, "upgrade.scheduled");
    assert_eq!(told.len(), 2);
    for line in &told {
        assert_eq!(
            json!([
                line["level"],
                line["team"],
                line["service_type"],
                line["from_version"],
                line["to_version"],
                line["security"]
            ]),
            json!(["INFO", "platform", "cache", "0.9.0", "1.1.0", false])
        );
        assert!(
            line["run_after"].is_string()
                && line["task_id"].is_string()
                && line["instance_id"].is_string()
        );
    }
    let expected: BTreeMap<String, String> = [("p1", "ready"), ("p2", "ready")]
        .map(|(a, b)| (a.into(), b.into()))
        .into();
    assert_eq!(f.upgrades().await, expected);
    let logs = f.r.tick_well().await;
    assert!(
        events(&logs, "upgrade.scheduled").is_empty(),
        "one that waits is not enqueued again, and logs nothing"
    );
    let waiting = f.rollout().await["waiting"].clone();
    assert_eq!(waiting.as_array().unwrap().len(), 4, "{waiting}");
    assert!(
        waiting[3]["why"].as_str().unwrap().contains("4th in line"),
        "{waiting}"
    );
}

#[tokio::test]
async fn the_default_cap_is_one_and_an_entrys_own_replaces_it() {
    let f = Fleet::new(&[("alpha", "a1"), ("alpha", "a2")], json!({})).await;
    assert_eq!(events(&f.r.tick_well().await, "upgrade.scheduled").len(), 1);
    assert_eq!(f.rollout().await["max_in_flight"], 1);
}

#[tokio::test]
async fn a_window_parks_hides_nobody_and_survives_and_an_unreadable_one_is_told_every_tick() {
    let f = Fleet::new(
        &[
            ("alpha", "bad"),
            ("alpha", "later"),
            ("alpha", "later2"),
            ("alpha", "now"),
            ("alpha", "open"),
        ],
        json!({}),
    )
    .await;
    f.set_window("bad", "Caturday 25:00").await;
    f.set_window("later", &window(false)).await;
    f.set_window("later2", &window(false)).await;
    f.set_window("open", &window(true)).await;
    let logs = f.r.tick_well().await;
    let bad = events(&logs, "upgrade.bad_window");
    assert_eq!(bad.len(), 1);
    assert_eq!(
        json!([
            bad[0]["level"],
            bad[0]["team"],
            bad[0]["maintenance_window"],
            bad[0]["instance_id"]
        ]),
        json!(["ERROR", "alpha", "Caturday 25:00", f.id("bad")])
    );
    let expected: BTreeMap<String, String> =
        [("later", "parked"), ("later2", "parked"), ("now", "ready")]
            .map(|(a, b)| (a.into(), b.into()))
            .into();
    assert_eq!(
        f.upgrades().await,
        expected,
        "parked ones take no slot; the cap keeps `open` back"
    );
    assert_eq!(
        events(&f.r.tick_well().await, "upgrade.bad_window").len(),
        1,
        "every tick"
    );
    let (_, page) = f
        .app
        .client("admin")
        .get(&format!("/api/v1/instances/{}", f.id("later")))
        .await;
    assert_eq!(page["next_openings"].as_array().unwrap().len(), 3);
    assert!(
        page["upgrade"]["why"]
            .as_str()
            .unwrap()
            .starts_with("window opens"),
        "{page}"
    );
    assert_eq!(page["upgrade"]["next_at"], page["next_openings"][0]);
}

#[tokio::test]
async fn a_security_upgrade_is_brought_forward_but_not_past_a_window_nobody_can_read() {
    let f = Fleet::new(
        &[("alpha", "parked"), ("alpha", "bad"), ("alpha", "pinned")],
        json!({"max_in_flight": 9}),
    )
    .await;
    f.set_window("parked", &window(false)).await;
    f.r.tick_well().await;
    assert_eq!(f.upgrades().await["parked"], "parked");
    f.set_window("bad", "whenever").await;
    sqlx::query("update instance set pin_until = now() + interval '1 day', pin_reason = 'x', pin_by = 'x' where id = $1").bind(f.id("pinned")).execute(&f.app.db.pool).await.unwrap();
    sqlx::query("delete from task where instance_id = any($1)")
        .bind([f.id("bad"), f.id("pinned")])
        .execute(&f.app.db.pool)
        .await
        .unwrap();
    f.app
        .make_version("1.1.1", true, json!({"security": true, "max_in_flight": 9}))
        .await;
    f.r.tick_well().await;
    let expected: BTreeMap<String, String> = [("parked".into(), "ready".into())].into();
    assert_eq!(f.upgrades().await, expected);
}

#[tokio::test]
async fn halted_schedules_nothing_and_resuming_with_nothing_to_do_enqueues_nothing() {
    let f = Fleet::new(&[("alpha", "a")], json!({})).await;
    let admin = f.app.client("admin");
    let (status, body) = admin
        .post("/api/v1/rollouts/cache/halt", json!({"reason": ""}))
        .await;
    assert_eq!(
        (status, body["errors"][0]["pointer"].as_str()),
        (422, Some("/reason"))
    );
    let (_, body) = admin
        .post(
            "/api/v1/rollouts/cache/halt",
            json!({"reason": "bad chart"}),
        )
        .await;
    assert_eq!(
        (
            body["state"].as_str(),
            body["by"].as_str(),
            body["reason"].as_str()
        ),
        (Some("halted"), Some("admin"), Some("bad chart"))
    );
    f.r.tick_well().await;
    assert!(f.upgrades().await.is_empty());
    let why = f.rollout().await["waiting"][0]["why"].clone();
    assert!(
        why.as_str().unwrap().contains("halted by admin")
            && why.as_str().unwrap().contains("bad chart"),
        "{why}"
    );
    // C24
    sqlx::query("update instance set entry_revision_id = (select target_id from standing where instance_id = instance.id)").execute(&f.app.db.pool).await.unwrap();
    f.resume().await;
    f.r.tick_well().await;
    assert!(f.upgrades().await.is_empty());
    // Everything, by the same way.
    admin
        .post("/api/v1/rollouts/halt", json!({"reason": "storm"}))
        .await;
    f.app.make_version("1.2.0", true, json!({})).await;
    f.r.tick_well().await;
    assert!(f.upgrades().await.is_empty());
    admin
        .post("/api/v1/rollouts/resume", json!({"reason": "over"}))
        .await;
    f.r.tick_well().await;
    assert_eq!(f.upgrades().await.len(), 1);
}

#[tokio::test]
async fn downgrades_breaks_and_manual_rollouts_start_halted_once() {
    let f = Fleet::new(&[("alpha", "a")], json!({"rollout": "manual"})).await;
    let logs = f.r.tick_well().await;
    assert_eq!(events(&logs, "rollout.halted").len(), 1);
    assert!(f.upgrades().await.is_empty());
    assert!(
        f.rollout().await["reason"]
            .as_str()
            .unwrap()
            .contains("1 instance wait"),
        "{}",
        f.rollout().await
    );
    f.resume().await;
    let logs = f.r.tick_well().await;
    assert!(
        events(&logs, "rollout.halted").is_empty(),
        "a person's word stands"
    );
    assert_eq!(f.upgrades().await.len(), 1);
    sqlx::query("delete from task")
        .execute(&f.app.db.pool)
        .await
        .unwrap();
    // A `git revert` must not downgrade a fleet.
    f.app.make_version("0.8.0", true, json!({})).await;
    f.r.tick_well().await;
    assert!(f.upgrades().await.is_empty());
    assert!(
        f.rollout().await["reason"]
            .as_str()
            .unwrap()
            .contains("downgrade")
    );
}

/// C21, C17, C23: 24 instances over three teams, cap 2, with concurrent ticks: never three, and all get there.
#[tokio::test]
async fn a_fleet_moves_on_within_its_cap() {
    let names: Vec<(String, String)> = (0..24)
        .map(|i| (["alpha", "beta", "platform"][i % 3].into(), format!("s{i}")))
        .collect();
    let names: Vec<(&str, &str)> = names
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    let f = Fleet::new(&names, json!({"max_in_flight": 2})).await;
    f.app.scripted(Duration::from_millis(30));
    f.app.scripted(Duration::from_millis(30));
    let until = std::time::Instant::now() + Duration::from_secs(60);
    let mut most = 0;
    loop {
        tokio::join!(f.r.tick(), f.r.tick());
        for _ in 0..20 {
            let flying: i64 =
                sqlx::query_scalar("select count(*) from instance where state = 'upgrading'")
                    .fetch_one(&f.app.db.pool)
                    .await
                    .unwrap();
            most = most.max(flying);
            assert!(flying <= 2, "never three");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        if f.versions().await.get("1.1.0") == Some(&24) {
            break;
        }
        assert!(
            std::time::Instant::now() < until,
            "{:?}",
            f.versions().await
        );
    }
    assert_eq!(most, 2, "and two at once");
    let first: Vec<String> = sqlx::query_scalar(
        "select t.slug from task_history h join team t on t.id = h.team_id where h.kind = 'upgrade' order by h.started_at limit 8",
    )
    .fetch_all(&f.app.db.pool)
    .await
    .unwrap();
    assert!(
        first[..7].iter().all(|t| t == "platform"),
        "the own team's first: {first:?}"
    );
}

/// Q10: one team's forty upgrades never delay another team's first install.
#[tokio::test]
async fn q10_a_first_install_does_not_wait_behind_a_fleets_rollout() {
    let names: Vec<String> = (0..40).map(|i| format!("s{i}")).collect();
    let names: Vec<(&str, &str)> = names.iter().map(|n| ("alpha", n.as_str())).collect();
    let f = Fleet::new(&names, json!({"max_in_flight": 40})).await;
    f.r.tick_well().await;
    assert_eq!(
        f.upgrades()
            .await
            .values()
            .filter(|s| *s == "ready")
            .count(),
        40
    );
    f.app.scripted(Duration::from_millis(700));
    let until = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let running: i64 = sqlx::query_scalar("select count(*) from task where state = 'running'")
            .fetch_one(&f.app.db.pool)
            .await
            .unwrap();
        assert!(running <= 3, "of four slots one is kept from upgrades");
        if running == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(std::time::Instant::now() < until);
    }
    let began = std::time::Instant::now();
    let id = f
        .app
        .client("member")
        .ask("cache", "first", json!({}))
        .await;
    f.app.wait(&id, &["ready"]).await;
    assert!(
        began.elapsed() < Duration::from_millis(2500),
        "{:?}",
        began.elapsed()
    );
    assert!(
        f.upgrades().await.len() > 25,
        "the rollout goes on behind it"
    );
}
