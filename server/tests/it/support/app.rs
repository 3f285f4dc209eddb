//! svcforge with everything but a fixed port: web on a free one, a scripted or real provisioner, named clients.

use super::TestDb;
use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};
use svcforge::{
    catalog,
    changes::Changes,
    db,
    http::{self, AppState, Info, Live},
    ops::Ops,
    provision::{Provisioner, scripted::Scripted},
    queue::{self, Timing, Wake, Worker},
    rollout,
    tasks::{Tasks, answer_reveals},
};
use svcforge_app::domain::Role;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub struct TestApp {
    pub db: TestDb,
    pub ops: Ops,
    pub url: String,
    pub timing: Timing,
    pub wake: Wake,
    tokens: BTreeMap<&'static str, String>,
    pub team: Uuid,
    stop: CancellationToken,
}

/// The catalog that ships.
pub fn shipped() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/catalog")
}

pub fn fast() -> Timing {
    Timing::standard(Duration::from_secs(240)).faster(50)
}

impl TestApp {
    /// With the shipped catalog and no worker yet.
    pub async fn new() -> Self {
        svcforge::tls::install();
        let db = TestDb::new().await;
        let entries = catalog::load(&shipped()).expect("the shipped catalog is valid");
        catalog::publish(&db.pool, &entries).await.unwrap();
        db::installation::load(&db.pool).await.unwrap();
        let changes = Changes::start(db.pool.clone());
        let ops = Ops {
            pool: db.pool.clone(),
            changes,
            apps_namespace: "polychrome-apps".into(),
            own_team: "platform".into(),
        };
        let (tokens, team) = people(&db).await;
        let (wake, stop) = (Wake::default(), CancellationToken::new());
        tokio::spawn(queue::listen(db.dsn.clone(), wake.clone(), stop.clone()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let live = Live::default();
        tokio::spawn(live.clone().feed(wake.changed.subscribe(), stop.clone()));
        let state = AppState {
            ops: ops.clone(),
            live,
            info: Arc::new(Info {
                external_url: url.clone(),
                cluster_note: None,
                site: PathBuf::from("nowhere"),
            }),
            leptos: leptos::config::LeptosOptions::builder()
                .output_name("svcforge")
                .build(),
            draining: stop.clone(),
        };
        tokio::spawn(http::serve(listener, http::router(state), stop.clone()));
        Self {
            db,
            ops,
            url,
            timing: fast(),
            wake,
            tokens,
            team,
            stop,
        }
    }

    /// Starts a worker; it ends with the app, or when the token is cancelled.
    pub fn worker(&self, provisioner: Arc<dyn Provisioner>) -> CancellationToken {
        self.worker_on(self.db.pool.clone(), provisioner)
    }

    /// A worker whose way to Postgres is that pool.
    pub fn worker_on(
        &self,
        pool: sqlx::PgPool,
        provisioner: Arc<dyn Provisioner>,
    ) -> CancellationToken {
        let stop = self.stop.child_token();
        let tasks = Arc::new(Tasks {
            pool: pool.clone(),
            provisioner,
        });
        tokio::spawn(answer_reveals(
            tasks.clone(),
            self.wake.clone(),
            stop.clone(),
        ));
        tokio::spawn(queue::sweep_forever(
            pool.clone(),
            self.timing,
            self.wake.clone(),
            stop.clone(),
        ));
        let worker = Worker {
            pool: pool.clone(),
            heart: pool.clone(),
            handler: tasks,
            timing: self.timing,
            slots: 4,
            drain: Duration::from_millis(300),
            changes: self.ops.changes.clone(),
            wake: self.wake.clone(),
        };
        tokio::spawn(worker.run(stop.clone()));
        tokio::spawn(rollout::admit_forever(
            pool,
            self.ops.changes.clone(),
            self.wake.changed.subscribe(),
            self.timing.sweep,
            stop.clone(),
        ));
        stop
    }

    /// A worker whose installs take a moment and are scripted.
    pub fn scripted(&self, pause: Duration) -> Arc<Scripted> {
        let scripted = Arc::new(Scripted::new(pause));
        self.worker(scripted.clone());
        scripted
    }

    /// One of `admin`, `owner`, `member`, `viewer`, `stranger`, or `nobody`.
    pub fn client(&self, who: &str) -> Client {
        Client {
            url: self.url.clone(),
            token: self.tokens.get(who).cloned(),
            http: reqwest::Client::new(),
        }
    }

    /// Waits for an instance to be in one of these states.
    pub async fn wait(&self, id: &str, states: &[&str]) -> Value {
        let admin = self.client("admin");
        let until = std::time::Instant::now() + Duration::from_secs(90);
        loop {
            let (_, instance) = admin.get(&format!("/api/v1/instances/{id}")).await;
            if states.iter().any(|s| instance["state"] == *s) {
                return instance;
            }
            if std::time::Instant::now() > until {
                let (_, tasks) = admin.get(&format!("/api/v1/instances/{id}/tasks")).await;
                panic!("not {states:?} in time: {instance:#}\n{tasks:#}");
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// Waits until nothing of a ready instance is under way: it says ready until a change of it begins, too.
    pub async fn settled(&self, id: &str) -> Value {
        let uuid = id.parse().unwrap();
        crate::support::proxy::until("settled", Duration::from_secs(90), async || {
            self.open_tasks(uuid).await.is_empty()
        })
        .await;
        self.wait(id, &["ready"]).await
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn people(db: &TestDb) -> (BTreeMap<&'static str, String>, Uuid) {
    let mut tx = db.pool.begin().await.unwrap();
    let team = svcforge::ids::new_id();
    // Namespaces are the cluster's, and the cluster is shared by every test: a slug of its own.
    let slug = format!("t{}", &team.simple().to_string()[20..]);
    db::team::insert(&mut tx, team, "demo", "Demo", &format!("svcf-{slug}"))
        .await
        .unwrap();
    let mut tokens = BTreeMap::new();
    for (who, admin, role) in [
        ("admin", true, None),
        ("owner", false, Some(Role::Owner)),
        ("member", false, Some(Role::Member)),
        ("viewer", false, Some(Role::Viewer)),
        ("stranger", false, None),
    ] {
        let user = db::user::ensure(&mut tx, who, admin).await.unwrap();
        if let Some(role) = role {
            db::team::set_role(&mut tx, team, user, role).await.unwrap();
        }
        let (token, id, hash) = http::new_token();
        db::user::replace_token(&mut tx, user, "test", &id, &hash)
            .await
            .unwrap();
        tokens.insert(who, token);
    }
    tx.commit().await.unwrap();
    (tokens, team)
}

/// Somebody's `curl`.
pub struct Client {
    url: String,
    token: Option<String>,
    pub http: reqwest::Client,
}

impl Client {
    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let request = self
            .http
            .request(method.parse().unwrap(), format!("{}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> (u16, Value) {
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (
            status,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        )
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.send(self.request("GET", path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(self.request("POST", path).json(&body)).await
    }

    pub async fn delete(&self, path: &str) -> (u16, Value) {
        self.send(self.request("DELETE", path)).await
    }

    /// Asks for an instance and returns its id.
    pub async fn ask(&self, service_type: &str, name: &str, parameters: Value) -> String {
        let (status, body) = self
            .post("/api/v1/instances", serde_json::json!({"team": "demo", "type": service_type, "name": name, "parameters": parameters}))
            .await;
        assert_eq!(status, 201, "{body:#}");
        body["id"].as_str().unwrap().to_owned()
    }
}
