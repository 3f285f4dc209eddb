//! A reconciler that is ticked by hand: scripted releases, kept notes, kept log.

use super::TestApp;
use async_trait::async_trait;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use svcforge::{
    cluster::{Listing, Releases, Seen},
    db::observed::ObjectRef,
    lease::Candidate,
    notify::{Note, Notifier},
    provision::Fault,
    reconcile::{Context, Rules, Ticked, tick},
};
use svcforge_app::domain::EntryKind;
use tracing::instrument::WithSubscriber;
use tracing_subscriber::{fmt::MakeWriter, layer::SubscriberExt};
use uuid::Uuid;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cluster that says what it is told to.
#[derive(Default)]
pub struct FakeReleases {
    pub listing: Mutex<Listing>,
    /// What single reads find; what the listing shows when none.
    pub alone: Mutex<Option<Listing>>,
    pub list_fails: Mutex<Option<Fault>>,
    pub find_fails: Mutex<Option<Fault>>,
    /// Of objects, by name.
    pub uids: Mutex<BTreeMap<String, String>>,
}

#[async_trait]
impl Releases for FakeReleases {
    async fn list(&self, _: &[String]) -> Result<Listing, Fault> {
        match lock(&self.list_fails).clone() {
            Some(fault) => Err(fault),
            None => Ok(lock(&self.listing).clone()),
        }
    }

    async fn find_uid(&self, object: &ObjectRef) -> Result<Option<String>, Fault> {
        if let Some(fault) = lock(&self.find_fails).clone() {
            return Err(fault);
        }
        Ok(lock(&self.uids).get(&object.name).cloned())
    }

    async fn find(&self, _: EntryKind, namespace: &str, name: &str) -> Result<Option<Seen>, Fault> {
        if let Some(fault) = lock(&self.find_fails).clone() {
            return Err(fault);
        }
        let place = (namespace.to_owned(), name.to_owned());
        let alone = lock(&self.alone).clone();
        let of = alone.unwrap_or_else(|| lock(&self.listing).clone());
        Ok(of.releases.get(&place).cloned())
    }
}

impl FakeReleases {
    pub fn put(&self, namespace: &str, name: &str, seen: Seen) {
        lock(&self.listing)
            .releases
            .insert((namespace.into(), name.into()), seen);
    }

    pub fn remove(&self, namespace: &str, name: &str) {
        lock(&self.listing)
            .releases
            .remove(&(namespace.to_owned(), name.to_owned()));
    }
}

pub fn seen(revision: i32, installation: Option<&str>) -> Seen {
    Seen {
        kind: EntryKind::Helm,
        revision,
        uid: None,
        status: "deployed".into(),
        installation: installation.map(str::to_owned),
        instance: None,
        modified_at: None,
    }
}

/// Keeps notes, or refuses them.
#[derive(Default)]
pub struct Notes {
    pub kept: Mutex<Vec<Note>>,
    pub refuse: Mutex<bool>,
}

#[async_trait]
impl Notifier for Notes {
    async fn notify(&self, notes: &[Note]) -> anyhow::Result<()> {
        anyhow::ensure!(!*lock(&self.refuse), "refused by the test");
        lock(&self.kept).extend_from_slice(notes);
        Ok(())
    }
}

/// JSON log lines of one future.
#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logs {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Logs {
    /// Runs something and keeps what it logs.
    pub async fn of<T>(work: impl Future<Output = T>) -> (T, Vec<Value>) {
        let logs = Self::default();
        let json = tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_writer(logs.clone());
        let subscriber = tracing_subscriber::registry()
            .with(tracing_subscriber::EnvFilter::new("svcforge=info"))
            .with(json);
        let done = work.with_subscriber(subscriber).await;
        let text = String::from_utf8(lock(&logs.0).clone()).unwrap();
        (
            done,
            text.lines()
                .map(|l| serde_json::from_str(l).unwrap())
                .collect(),
        )
    }
}

/// Lines of an event.
pub fn events<'a>(logs: &'a [Value], name: &str) -> Vec<&'a Value> {
    logs.iter().filter(|l| l["event"] == name).collect()
}

pub struct Reconciler {
    pub cx: Context,
    pub releases: Arc<FakeReleases>,
    pub notes: Arc<Notes>,
}

impl Reconciler {
    pub async fn new(app: &TestApp) -> Self {
        let leading = Candidate::new(&app.db.dsn)
            .try_lead(None)
            .await
            .unwrap()
            .unwrap();
        let (releases, notes) = (
            Arc::new(FakeReleases::default()),
            Arc::new(Notes::default()),
        );
        let cx = Context {
            pool: app.db.pool.clone(),
            leading,
            releases: Some(releases.clone()),
            notifier: notes.clone(),
            rules: Rules {
                own_team: "platform".into(),
                max_in_flight: 1,
                all_orphans: false,
                interval: Duration::from_secs(60),
                patience: Duration::from_secs(300),
                timing: app.timing,
            },
            changes: app.ops.changes.clone(),
            installation: "me".into(),
            whole: true,
        };
        Self {
            cx,
            releases,
            notes,
        }
    }

    /// One tick; what it logged.
    pub async fn tick(&self) -> (Ticked, Vec<Value>) {
        Logs::of(tick(&self.cx)).await
    }

    /// One tick in which no check fails; what it logged.
    pub async fn tick_well(&self) -> Vec<Value> {
        let (ticked, logs) = self.tick().await;
        assert_eq!(ticked.failed, Vec::<&str>::new(), "{logs:#?}");
        logs
    }
}

/// An instance that is `ready`, as if it had been installed as revision 1 and served.
pub struct Made {
    pub id: Uuid,
    pub release: String,
    pub namespace: String,
}

impl TestApp {
    /// A team, made if there is none.
    pub async fn make_team(&self, slug: &str) -> Uuid {
        if let Some(team) = svcforge::db::team::find(&self.db.pool, slug).await.unwrap() {
            return team.id;
        }
        let id = svcforge::ids::new_id();
        let mut tx = self.db.pool.begin().await.unwrap();
        svcforge::db::team::insert(&mut tx, id, slug, slug, &format!("svcf-{slug}"))
            .await
            .unwrap();
        tx.commit().await.unwrap();
        id
    }

    /// A revision of `cache` with another version; in the catalog when `published`. More keys of its spec may be set.
    pub async fn make_version(&self, version: &str, published: bool, more: Value) -> Uuid {
        let id = svcforge::ids::new_id();
        let digest = id.as_bytes().to_vec();
        sqlx::query(
            "insert into entry_revision (id, service_type, kind, chart_version, digest, spec, chart)
             select $1, service_type, kind, $2, $3, spec || jsonb_build_object('chart_version', $2::text) || $4, chart
             from entry_revision where service_type = 'cache' order by created_at limit 1",
        )
        .bind(id)
        .bind(version)
        .bind(&digest)
        .bind(more)
        .execute(&self.db.pool)
        .await
        .unwrap();
        if published {
            let mut tx = self.db.pool.begin().await.unwrap();
            let items: Vec<(String, Uuid)> = sqlx::query_as(
                "select service_type, case when service_type = 'cache' then $1 else entry_revision_id end from catalog_item
                 where catalog_revision_id = (select max(id) from catalog_revision)",
            )
            .bind(id)
            .fetch_all(&mut *tx)
            .await
            .unwrap();
            svcforge::db::catalog::publish(&mut tx, &digest, &items)
                .await
                .unwrap();
            tx.commit().await.unwrap();
        }
        id
    }

    /// A ready `cache` of a team, on a revision (the catalog's when none).
    pub async fn make_ready(&self, team: &str, name: &str, revision: Option<Uuid>) -> Made {
        let team_id = self.make_team(team).await;
        let id = svcforge::ids::new_id();
        let (release, namespace): (String, String) = sqlx::query_as(
            "insert into instance (id, team_id, service_type, kind, name, state, entry_revision_id, release_name, release_namespace, release_revision,
                                   parameters, created_by)
             select $1, $2, 'cache', 'helm', $3, 'ready', coalesce($4, (select entry_revision_id from catalog_item where service_type = 'cache'
                      and catalog_revision_id = (select max(id) from catalog_revision))), $3 || '-' || left(md5($1::text), 8), t.namespace, 1, '{}', 'test'
             from team t where t.id = $2 returning release_name, release_namespace",
        )
        .bind(id)
        .bind(team_id)
        .bind(name)
        .bind(revision)
        .fetch_one(&self.db.pool)
        .await
        .unwrap();
        Made {
            id,
            release,
            namespace,
        }
    }

    /// Tasks of an instance that have not ended: kind and inner state.
    pub async fn open_tasks(&self, id: Uuid) -> Vec<(String, String)> {
        sqlx::query_as("select kind, state from task where instance_id = $1 order by kind")
            .bind(id)
            .fetch_all(&self.db.pool)
            .await
            .unwrap()
    }

    /// The state of an instance.
    pub async fn state_of(&self, id: Uuid) -> String {
        sqlx::query_scalar("select state from instance where id = $1")
            .bind(id)
            .fetch_one(&self.db.pool)
            .await
            .unwrap()
    }

    /// Runs SQL.
    pub async fn sql(&self, text: &'static str) {
        sqlx::query(text).execute(&self.db.pool).await.unwrap();
    }
}
