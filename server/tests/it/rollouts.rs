//! Day-2 rollouts (contract 2.3 `version_drift`, design §§10–12), with scripted installs and a real Postgres.

use crate::support::{
    TestApp,
    reconciler::{Made, Reconciler, events, seen},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use svcforge::{provision::Fault, rollout};
use uuid::Uuid;

/// A daily window that is open now, or opens in two hours.
fn window(open: bool) -> String {
    let hour = svcforge::clock::now().as_second() / 3600 % 24;
    let from = if open { hour + 23 } else { hour + 2 } % 24;
    format!(
        "daily {from:02}:00-{:02}:00",
        (from + 3 - i64::from(!open) * 2) % 24
    )
}

struct Fleet {
    app: TestApp,
    r: Reconciler,
    made: BTreeMap<String, Made>,
}

impl Fleet {
    /// Ready instances on 0.9.0; the catalog offers 1.1.0 with those keys set.
    async fn new(names: &[(&str, &str)], spec: Value) -> Self {
        let app = TestApp::new().await;
        let r = Reconciler::new(&app).await;
        let old = app.make_version("0.9.0", false, json!({})).await;
        let mut made = BTreeMap::new();
        for (team, name) in names {
            let one = app.make_ready(team, name, Some(old)).await;
            r.releases
                .put(&one.namespace, &one.release, seen(1, Some("me")));
            made.insert((*name).to_owned(), one);
        }
        app.make_version("1.1.0", true, spec).await;
        Self { app, r, made }
    }

    fn id(&self, name: &str) -> Uuid {
        self.made[name].id
    }

    async fn set_window(&self, name: &str, window: &str) {
        sqlx::query("update instance set maintenance_window = $2 where id = $1")
            .bind(self.id(name))
            .bind(window)
            .execute(&self.app.db.pool)
            .await
            .unwrap();
    }

    /// Names with an upgrade, and its inner state.
    async fn upgrades(&self) -> BTreeMap<String, String> {
        let rows: Vec<(String, String)> = sqlx::query_as(
            "select i.name, k.state from task k join instance i on i.id = k.instance_id where k.kind = 'upgrade'",
        )
        .fetch_all(&self.app.db.pool)
        .await
        .unwrap();
        rows.into_iter().collect()
    }

    async fn versions(&self) -> BTreeMap<String, i64> {
        let rows: Vec<(String, i64)> = sqlx::query_as(
            "select r.chart_version, count(*) from instance i join entry_revision r on r.id = i.entry_revision_id
             where i.service_type = 'cache' group by 1",
        )
        .fetch_all(&self.app.db.pool)
        .await
        .unwrap();
        rows.into_iter().collect()
    }

    async fn rollout(&self) -> Value {
        self.app
            .client("admin")
            .get("/api/v1/rollouts/cache")
            .await
            .1
    }

    async fn resume(&self) {
        let (status, body) = self
            .app
            .client("admin")
            .post("/api/v1/rollouts/cache/resume", json!({"reason": "a test"}))
            .await;
        assert_eq!(status, 200, "{body}");
    }
}

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

/// R8: a rollout across both changes of the clock, with halts, resumes and dying workers on the way: never more than the cap, nothing
/// outside its window, and everybody gets there. Time is the database's: a schema with a `now()` of its own stands first.
async fn across_a_change(from: &str, seed: u64) {
    use rand::{Rng, SeedableRng};
    let count = if std::env::var_os("SVCFORGE_LONG").is_some() {
        500
    } else {
        60
    };
    let windows = [
        "daily 02:00-03:00 Europe/Berlin",
        "daily 01:30-02:30 Europe/Berlin",
        "daily 23:30-00:30 Europe/Berlin",
        "daily 02:00-04:00 UTC",
    ];
    let names: Vec<(String, String)> = (0..count)
        .map(|i| (["alpha", "beta", "platform"][i % 3].into(), format!("s{i}")))
        .collect();
    let names: Vec<(&str, &str)> = names
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    let cap = 7;
    let mut f = Fleet::new(&names, json!({"max_in_flight": cap})).await;
    for (i, (_, name)) in names.iter().enumerate() {
        f.set_window(name, windows[i % windows.len()]).await;
    }
    let start: jiff::Timestamp = from.parse().unwrap();
    f.app.sql("create schema fake").await;
    f.app
        .sql("create table fake.offset_of (seconds double precision)")
        .await;
    f.app.sql("insert into fake.offset_of values (0)").await;
    f.app.sql("create function fake.now() returns timestamptz language sql stable as 'select pg_catalog.now() + make_interval(secs => (select seconds from fake.offset_of))'").await;
    let dsn = format!(
        "{}?options=-csearch_path%3Dfake,pg_catalog,public",
        f.app.db.dsn
    );
    let pool = svcforge::db::connect(&crate::support::db::settings(&dsn))
        .await
        .unwrap();
    f.r.cx.pool = pool.clone();
    let scripted = std::sync::Arc::new(svcforge::provision::scripted::Scripted::new(
        Duration::from_millis(15),
    ));
    let mut worker = f.app.worker_on(pool.clone(), scripted.clone());
    let mut dice = rand::rngs::StdRng::seed_from_u64(seed);
    let admin = f.app.client("admin");
    let (mut done, mut halted) = (std::collections::BTreeSet::new(), false);
    let windows_of: BTreeMap<String, svcforge_app::domain::Window> = names
        .iter()
        .enumerate()
        .map(|(i, (_, n))| {
            (
                (*n).to_owned(),
                svcforge_app::domain::Window::parse(windows[i % windows.len()]).unwrap(),
            )
        })
        .collect();
    for step in 0..600 {
        let at = start + jiff::SignedDuration::from_mins(12 * step);
        sqlx::query("update fake.offset_of set seconds = extract(epoch from $1::timestamptz - pg_catalog.now())").bind(jiff_sqlx::ToSqlx::to_sqlx(at)).execute(&f.app.db.pool).await.unwrap();
        match dice.random_range(0..8) {
            0 => {
                halted = !halted;
                admin
                    .post(
                        &format!(
                            "/api/v1/rollouts/cache/{}",
                            if halted { "halt" } else { "resume" }
                        ),
                        json!({"reason": "the test"}),
                    )
                    .await;
            }
            1 => {
                worker.cancel();
                worker = f.app.worker_on(pool.clone(), scripted.clone());
            }
            _ => {}
        }
        let before = done.len();
        f.r.tick_well().await;
        svcforge::queue::sweep_once(&pool, &f.app.timing)
            .await
            .unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let (flying, running): (i64, i64) = sqlx::query_as(
                "select (select count(*) from task where slot_since is not null), (select count(*) from task where state in ('ready', 'running', 'blocked'))",
            )
            .fetch_one(&f.app.db.pool)
            .await
            .unwrap();
            assert!(flying <= cap, "never more than {cap}: {flying}");
            if running == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
            assert!(std::time::Instant::now() < until);
        }
        let now: Vec<String> = sqlx::query_scalar("select i.name from instance i join entry_revision r on r.id = i.entry_revision_id where r.chart_version = '1.1.0'").fetch_all(&f.app.db.pool).await.unwrap();
        for name in now {
            if done.insert(name.clone()) {
                assert!(
                    windows_of[&name].is_open(at),
                    "{name} moved at {at}, outside its window"
                );
            }
        }
        assert!(
            !halted || done.len() == before,
            "nothing starts while halted"
        );
        if done.len() == count {
            break;
        }
    }
    assert_eq!(
        done.len(),
        count,
        "every window opened, and everybody got there"
    );
    worker.cancel();
}

#[tokio::test]
async fn r8_across_the_spring_change() {
    across_a_change("2027-03-27T18:00:00Z", 1).await;
}

#[tokio::test]
async fn r8_across_the_autumn_change() {
    across_a_change("2027-10-30T18:00:00Z", 2).await;
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
