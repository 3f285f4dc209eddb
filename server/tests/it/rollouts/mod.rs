//! Day-2 rollouts (contract 2.3 `version_drift`, design §§10–12), with scripted installs and a real Postgres.

mod clock;
mod people;
mod starts;
mod ticks;

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
