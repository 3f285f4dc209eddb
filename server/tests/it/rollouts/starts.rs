//! What may start: the gate that every upgrade passes at its claim.

use super::*;

/// A bad chart stops after one tenant; resumed with a good one it finishes.
#[tokio::test]
async fn a_final_failure_halts_the_type_before_its_slot_is_free() {
    let f = Fleet::new(&[("alpha", "a"), ("alpha", "b"), ("alpha", "c")], json!({})).await;
    let scripted = f.app.scripted(Duration::from_millis(10));
    scripted.fail_next(Fault::Rejected(
        "execution error at (cache/templates/x.yaml:1)".into(),
    ));
    f.r.tick_well().await;
    f.app.wait(&f.id("a").to_string(), &["failed"]).await;
    let page = f.rollout().await;
    assert_eq!(page["state"], "halted");
    assert!(
        page["reason"]
            .as_str()
            .unwrap()
            .contains("the upgrade of a (alpha) failed: execution error"),
        "{page}"
    );
    for _ in 0..3 {
        f.r.tick_well().await;
    }
    assert_eq!(
        f.versions().await["0.9.0"],
        3,
        "one tenant, and it is still on the old one"
    );
    let notes: Vec<String> = sqlx::query_scalar("select kind from notification")
        .fetch_all(&f.app.db.pool)
        .await
        .unwrap();
    assert_eq!(notes, ["rollout.halted"]);
    f.app.make_version("1.1.1", true, json!({})).await;
    f.r.tick_well().await;
    assert!(
        f.upgrades().await.is_empty(),
        "a new version does not resume by itself"
    );
    f.resume().await;
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while f.versions().await.get("1.1.1") != Some(&2) {
        f.r.tick_well().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(
            std::time::Instant::now() < until,
            "{:?}",
            f.versions().await
        );
    }
    // The one that failed wants a person: its retry installs what it had, then the machine moves it on.
    let (status, _) = f
        .app
        .client("admin")
        .post(&format!("/api/v1/instances/{}/retry", f.id("a")), json!({}))
        .await;
    assert_eq!(status, 202);
    f.app.wait(&f.id("a").to_string(), &["ready"]).await;
    f.r.tick_well().await;
    while f.versions().await.get("1.1.1") != Some(&3) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(std::time::Instant::now() < until);
    }
}

/// The slot is held between attempts, and a retry that comes due while halted waits for its end.
#[tokio::test]
async fn an_upgrade_keeps_its_slot_between_attempts_and_halts_reach_retries() {
    let f = Fleet::new(&[("alpha", "a"), ("alpha", "b")], json!({})).await;
    let scripted = f.app.scripted(Duration::from_millis(5));
    scripted.fail_next(Fault::Failed("flaky".into()));
    f.r.tick_well().await;
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while f.upgrades().await.get("a").map(String::as_str) != Some("parked") {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(std::time::Instant::now() < until);
    }
    f.r.tick_well().await;
    assert!(
        !f.upgrades().await.contains_key("b"),
        "its slot is taken while it waits for its next attempt"
    );
    f.app
        .client("admin")
        .post("/api/v1/rollouts/cache/halt", json!({"reason": "stop"}))
        .await;
    sqlx::query("update task set run_after = now()")
        .execute(&f.app.db.pool)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(
        f.upgrades().await["a"],
        "gated",
        "nothing starts while halted"
    );
    f.resume().await;
    f.app.wait(&f.id("a").to_string(), &["ready"]).await;
    assert_eq!(f.versions().await["1.1.0"], 1);
}

impl Fleet {
    /// Its attempt has failed, and the next is minutes away.
    async fn parked(&self, name: &str) {
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while self.upgrades().await.get(name).map(String::as_str) != Some("parked") {
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(std::time::Instant::now() < until);
        }
    }

    /// What is parked comes due.
    async fn due(&self) {
        self.app.sql("update task set run_after = now()").await;
    }
}

/// C14: what started may finish. Its slot is not given away when its window closes between two attempts: a bad chart would get to the
/// next tenant.
#[tokio::test]
async fn an_upgrade_that_started_keeps_its_slot_and_goes_on_after_its_window() {
    let f = Fleet::new(&[("alpha", "a"), ("alpha", "b")], json!({})).await;
    f.set_window("a", &window(true)).await;
    let scripted = f.app.scripted(Duration::from_millis(5));
    scripted.fail_next(Fault::Failed("flaky".into()));
    f.r.tick_well().await;
    f.parked("a").await;
    f.set_window("a", &window(false)).await;
    scripted.fail_next(Fault::Failed("flaky again".into()));
    f.due().await;
    let again = "select attempt = 2 and state = 'parked' from task";
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !sqlx::query_scalar::<_, bool>(again)
        .fetch_one(&f.app.db.pool)
        .await
        .unwrap()
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(std::time::Instant::now() < until);
    }
    f.r.tick_well().await;
    assert!(!f.upgrades().await.contains_key("b"), "the slot is a's");
    f.due().await;
    f.app.wait(&f.id("a").to_string(), &["ready"]).await;
    assert_eq!(f.versions().await["1.1.0"], 1);
}

/// C5: an upgrade that has begun and has nowhere to go on to has failed: what runs may be of either version, and `ready` would be a lie.
#[tokio::test]
async fn an_upgrade_under_way_that_has_nowhere_to_go_is_no_success() {
    for gone in [false, true] {
        let f = Fleet::new(&[("alpha", "a"), ("alpha", "b")], json!({})).await;
        let scripted = f.app.scripted(Duration::from_millis(5));
        scripted.fail_next(Fault::Failed("flaky".into()));
        f.r.tick_well().await;
        f.parked("a").await;
        if gone {
            f.app
                .sql("delete from catalog_item where service_type = 'cache'")
                .await;
        } else {
            f.app
                .sql("update instance set parameters = '{\"memory_mb\": 64}' where name = 'a'")
                .await;
            let none = json!({"parameters": {"type": "object", "additionalProperties": false, "properties": {}}});
            f.app.make_version("1.2.0", true, none).await;
            f.r.tick_well().await;
            if f.rollout().await["state"] == "halted" {
                f.resume().await;
            }
        }
        f.due().await;
        f.app.wait(&f.id("a").to_string(), &["failed"]).await;
        let (_, page) = f
            .app
            .client("admin")
            .get(&format!("/api/v1/instances/{}", f.id("a")))
            .await;
        let error = page["last_error"].as_str().unwrap();
        assert!(error.contains("may be of either version"), "{page:#}");
        assert!(!f.upgrades().await.contains_key("b"), "and nobody follows");
    }
}

/// C10, C14: parked outside its window; the first look inside it starts it; the claim asks again.
#[tokio::test]
async fn the_claim_asks_again_for_window_pin_and_completeness() {
    let f = Fleet::new(
        &[("alpha", "w"), ("alpha", "p"), ("alpha", "i")],
        json!({"max_in_flight": 9}),
    )
    .await;
    f.r.tick_well().await;
    assert_eq!(f.upgrades().await.len(), 3);
    // All three are heads of their lanes; before a worker comes things change.
    f.set_window("w", &window(false)).await;
    sqlx::query("update instance set pin_until = now() + interval '1 hour', pin_reason = 'fair', pin_by = 'ana' where id = $1").bind(f.id("p")).execute(&f.app.db.pool).await.unwrap();
    sqlx::query("insert into instance_observed (instance_id, verdict, sentence, parts) values ($1, 'failed', '0 of 1 ready', '[]')").bind(f.id("i")).execute(&f.app.db.pool).await.unwrap();
    f.app.scripted(Duration::ZERO);
    let expected: BTreeMap<String, String> = [("w", "parked"), ("p", "gated"), ("i", "gated")]
        .map(|(a, b)| (a.into(), b.into()))
        .into();
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while f.upgrades().await != expected {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(
            std::time::Instant::now() < until,
            "{:?}",
            f.upgrades().await
        );
    }
    let attempts: i64 = sqlx::query_scalar("select sum(attempt) from task")
        .fetch_one(&f.app.db.pool)
        .await
        .unwrap();
    assert_eq!(attempts, 0, "it cost no attempt");
    assert_eq!(f.rollout().await["state"], "active", "and blames nobody");
    let (_, page) = f
        .app
        .client("admin")
        .get(&format!("/api/v1/instances/{}", f.id("i")))
        .await;
    assert!(
        page["upgrade"]["why"]
            .as_str()
            .unwrap()
            .contains("set aside"),
        "{page}"
    );
    // What stood in the way goes.
    sqlx::query("update instance set pin_until = null where id = $1")
        .bind(f.id("p"))
        .execute(&f.app.db.pool)
        .await
        .unwrap();
    sqlx::query("delete from instance_observed")
        .execute(&f.app.db.pool)
        .await
        .unwrap();
    let member = f.app.client("admin");
    let (_, w) = member
        .get(&format!("/api/v1/instances/{}", f.id("w")))
        .await;
    let patch = member
        .request("PATCH", &format!("/api/v1/instances/{}", f.id("w")))
        .header("if-match", format!("\"{}\"", w["version"]))
        .json(&json!({"maintenance_window": window(true)}));
    assert_eq!(member.send(patch).await.0, 200);
    for name in ["p", "i", "w"] {
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
            assert!(
                std::time::Instant::now() < until,
                "{name}: {:?}",
                f.upgrades().await
            );
        }
    }
}

/// R7: halt pressed about the moment of a claim, over and over: nothing that had not started starts while it is halted.
#[tokio::test]
async fn nothing_starts_while_halted_whatever_the_interleaving() {
    let f = Fleet::new(&[("alpha", "a")], json!({})).await;
    let pool = &f.app.db.pool;
    f.r.tick_well().await;
    let (task, token): (Uuid, i64) =
        sqlx::query_as("update task set state = 'running', token = 7 returning id, token")
            .fetch_one(pool)
            .await
            .unwrap();
    let claimed: svcforge::db::queue::Claimed = claimed(f.id("a"), task, token);
    let rounds = if std::env::var_os("SVCFORGE_LONG").is_some() {
        5000
    } else {
        1500
    };
    let (mut started, mut refused) = (0, 0);
    for round in 0..rounds {
        sqlx::query(
            "update rollout set rollout_state = 'active' where service_type in ('cache', '*')",
        )
        .execute(pool)
        .await
        .unwrap();
        sqlx::query("update task set slot_since = null")
            .execute(pool)
            .await
            .unwrap();
        let of = if round % 2 == 0 { "cache" } else { "*" };
        let halt = async {
            if round % 3 == 0 {
                tokio::task::yield_now().await;
            }
            let mut tx = pool.begin().await.unwrap();
            svcforge::db::rollout::halt(&mut tx, of, "test", "test")
                .await
                .unwrap();
            tx.commit().await.unwrap();
            let at: f64 =
                sqlx::query_scalar("select extract(epoch from clock_timestamp())::float8")
                    .fetch_one(pool)
                    .await
                    .unwrap();
            at
        };
        let start = async {
            let mut tx = pool.begin().await.unwrap();
            svcforge::db::queue::lock_lanes(&mut tx, &[f.id("a")])
                .await
                .unwrap();
            let done = rollout::may_start(&mut tx, &claimed).await.unwrap();
            tx.commit().await.unwrap();
            matches!(done, rollout::Start::Go(..))
        };
        let (halted_at, went) = tokio::join!(halt, start);
        let slot: Option<f64> =
            sqlx::query_scalar("select extract(epoch from slot_since)::float8 from task")
                .fetch_one(pool)
                .await
                .unwrap();
        assert_eq!(slot.is_some(), went);
        if let Some(at) = slot {
            assert!(
                at <= halted_at,
                "round {round}: it started at {at}, after the halt at {halted_at}"
            );
            started += 1;
        } else {
            refused += 1;
        }
    }
    assert!(
        started > 0 && refused > 0,
        "both orders were seen: {started} {refused}"
    );
}

fn claimed(instance_id: Uuid, id: Uuid, token: i64) -> svcforge::db::queue::Claimed {
    svcforge::db::queue::Claimed {
        id,
        kind: "upgrade".into(),
        instance_id,
        payload: json!({}),
        attempt: 1,
        max_attempts: 3,
        token,
        requested_by: "reconciler".into(),
        reason: "test".into(),
        error: None,
        stop_reason: None,
        act: Some("upgrade".into()),
        rollout_type: Some("cache".into()),
        traceparent: None,
    }
}

/// A target that no tick has decided of yet may be a downgrade: nothing moves to it, whatever was already let in.
#[tokio::test]
async fn nothing_starts_towards_a_target_that_was_not_looked_at() {
    let f = Fleet::new(&[("alpha", "a")], json!({})).await;
    f.r.tick_well().await;
    assert_eq!(f.upgrades().await["a"], "ready", "let in, towards 1.1.0");
    f.app.make_version("0.8.0", true, json!({})).await;
    f.app.scripted(Duration::ZERO);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while f.upgrades().await.get("a").map(String::as_str) != Some("gated") {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(
            std::time::Instant::now() < until,
            "{:?}",
            f.upgrades().await
        );
    }
    f.r.tick_well().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(f.versions().await["0.9.0"], 1, "it did not go down");
    assert!(
        f.rollout().await["reason"]
            .as_str()
            .unwrap()
            .contains("downgrade")
    );
}

/// A person's upgrade whose target goes away before it starts leaves the instance where it is.
#[tokio::test]
async fn an_upgrade_with_nothing_left_to_do_points_the_instance_nowhere() {
    let f = Fleet::new(&[("demo", "a")], json!({})).await;
    let (status, _) = f
        .app
        .client("member")
        .post(
            &format!("/api/v1/instances/{}/upgrade", f.id("a")),
            json!({}),
        )
        .await;
    assert_eq!(status, 202);
    sqlx::query("insert into catalog_revision (digest) values ('\\x01')")
        .execute(&f.app.db.pool)
        .await
        .unwrap();
    sqlx::query("insert into catalog_item select (select max(id) from catalog_revision), 'cache', entry_revision_id from instance").execute(&f.app.db.pool).await.unwrap();
    f.app.scripted(Duration::ZERO);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !f.upgrades().await.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(std::time::Instant::now() < until);
    }
    assert_eq!(
        f.versions().await,
        BTreeMap::from([("0.9.0".to_owned(), 1)])
    );
}

/// One whose parameters do not fit is held; its type goes on.
#[tokio::test]
async fn parameters_that_do_not_fit_hold_that_instance_and_halt_nobody() {
    let f = Fleet::new(
        &[("alpha", "a"), ("alpha", "b")],
        json!({"parameters": {"type": "object", "additionalProperties": false, "properties": {}}}),
    )
    .await;
    sqlx::query("update instance set parameters = '{\"memory_mb\": 64}' where name = 'a'")
        .execute(&f.app.db.pool)
        .await
        .unwrap();
    f.app.scripted(Duration::ZERO);
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while f.versions().await.get("1.1.0") != Some(&1) {
        f.r.tick_well().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(
            std::time::Instant::now() < until,
            "{:?}",
            f.versions().await
        );
    }
    assert_eq!(f.rollout().await["state"], "active");
    let (_, page) = f
        .app
        .client("admin")
        .get(&format!("/api/v1/instances/{}", f.id("a")))
        .await;
    assert!(
        page["hold"].as_str().unwrap().contains("memory_mb"),
        "{page}"
    );
    assert_eq!(page["state"], "ready");
}

/// A repair under way: what a person asks waits for it, and cancelling something else does not fail it.
#[tokio::test]
async fn a_repair_is_neither_overtaken_nor_failed_by_other_work() {
    let f = Fleet::new(&[("demo", "a")], json!({})).await;
    f.set_window("a", &window(false)).await;
    f.r.tick_well().await;
    let member = f.app.client("member");
    f.r.releases
        .remove(&f.made["a"].namespace, &f.made["a"].release);
    f.r.tick_well().await;
    assert_eq!(f.app.state_of(f.id("a")).await, "provisioning");
    let (_, tasks) = member
        .get(&format!("/api/v1/instances/{}/tasks", f.id("a")))
        .await;
    let upgrade = tasks["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|t| t["kind"] == "upgrade")
        .unwrap()
        .clone();
    let (status, _) = member
        .post(
            &format!("/api/v1/tasks/{}/cancel", upgrade["id"].as_str().unwrap()),
            json!({}),
        )
        .await;
    assert_eq!(status, 202);
    assert_eq!(
        f.app.state_of(f.id("a")).await,
        "provisioning",
        "the repair still works on it"
    );
    f.app.scripted(Duration::from_millis(20));
    f.app.wait(&f.id("a").to_string(), &["ready"]).await;
    f.r.tick_well().await;
    assert!(
        f.upgrades().await.is_empty(),
        "cancelled means held until the catalog moves on"
    );
}

/// N7 at the claim: an expiry that was parked for its grace waits while a person has paused it.
#[tokio::test]
async fn a_paused_expiry_removes_nothing() {
    let f = Fleet::new(&[("demo", "a")], json!({})).await;
    sqlx::query("update instance set expires_at = now()")
        .execute(&f.app.db.pool)
        .await
        .unwrap();
    f.r.tick_well().await;
    let (status, _) = f
        .app
        .client("member")
        .post(
            &format!("/api/v1/instances/{}/pause", f.id("a")),
            json!({"reason": "wait"}),
        )
        .await;
    assert_eq!(status, 200);
    f.app.scripted(Duration::ZERO);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !matches!(f.app.open_tasks(f.id("a")).await.first(), Some((_, state)) if state == "parked")
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(
            std::time::Instant::now() < until,
            "{:?}",
            f.app.open_tasks(f.id("a")).await
        );
    }
    assert_eq!(
        f.app.state_of(f.id("a")).await,
        "deleting",
        "nothing was removed"
    );
}
