//! One observer: watches, and writes what it sees of each instance, on change only and at most twice a second. The web reads that.

use super::{Clients, Stores};
use crate::{changes::Changes, db};
use sqlx::PgPool;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};
use svcforge_app::domain::Readiness;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How long changes are gathered.
const GATHER: Duration = Duration::from_millis(500);
/// Everything is looked at again after this long: the net under the watches.
const FULL: Duration = Duration::from_secs(60);

/// Observes until told to stop.
pub async fn observe(
    clients: Clients,
    pool: PgPool,
    changes: Changes,
    mut told: broadcast::Receiver<Option<String>>,
    stop: CancellationToken,
) {
    let (stores, mut changed) = Stores::start(&clients, None);
    tokio::select! {
        () = stop.cancelled() => return,
        () = stores.ready() => {}
    }
    let mut written: HashMap<Uuid, Readiness> = HashMap::new();
    let mut dirty = Dirty {
        all: true,
        ..Dirty::default()
    };
    let mut full = tokio::time::Instant::now();
    loop {
        if full.elapsed() > FULL {
            dirty.all = true;
            full = tokio::time::Instant::now();
        }
        if !dirty.is_empty() {
            match look(&stores, &pool, &changes, &dirty, &mut written).await {
                Ok(()) => dirty = Dirty::default(),
                Err(error) => tracing::warn!(event = "observe.failed", %error),
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = dirty.gather(&mut changed, &mut told) => {}
        }
    }
}

#[derive(Default)]
struct Dirty {
    all: bool,
    namespaces: BTreeSet<String>,
    instances: BTreeSet<String>,
}

impl Dirty {
    fn is_empty(&self) -> bool {
        !self.all && self.namespaces.is_empty() && self.instances.is_empty()
    }

    /// Waits for the first change, then gathers for a moment.
    async fn gather(
        &mut self,
        changed: &mut tokio::sync::mpsc::Receiver<String>,
        told: &mut broadcast::Receiver<Option<String>>,
    ) {
        // What could not be written is tried again soon.
        let mut until =
            tokio::time::Instant::now() + if self.is_empty() { FULL } else { GATHER * 4 };
        loop {
            let first = self.is_empty();
            tokio::select! {
                namespace = changed.recv() => match namespace {
                    Some(namespace) if namespace.is_empty() => self.all = true,
                    Some(namespace) => { self.namespaces.insert(namespace); }
                    None => return,
                },
                message = told.recv() => match message {
                    Ok(Some(text)) => {
                        if let Some(id) = text.strip_prefix("instance:") {
                            self.instances.insert(id.into());
                        }
                    }
                    Ok(None) | Err(broadcast::error::RecvError::Lagged(_)) => self.all = true,
                    Err(broadcast::error::RecvError::Closed) => tokio::time::sleep(GATHER).await,
                },
                () = tokio::time::sleep_until(until) => return,
            }
            if first && !self.is_empty() {
                until = tokio::time::Instant::now() + GATHER;
            }
        }
    }
}

async fn look(
    stores: &Stores,
    pool: &PgPool,
    changes: &Changes,
    dirty: &Dirty,
    written: &mut HashMap<Uuid, Readiness>,
) -> sqlx::Result<()> {
    let namespaces: Vec<String> = dirty.namespaces.iter().cloned().collect();
    let named: Vec<Uuid> = dirty
        .instances
        .iter()
        .filter_map(|id| id.parse().ok())
        .collect();
    let wanted = (!dirty.all).then_some(&namespaces[..]);
    let mut parts = BTreeMap::<Uuid, Vec<db::observed::ObjectRef>>::new();
    for (instance, object) in db::observed::list_parts(pool, wanted, &named).await? {
        parts.entry(instance).or_default().push(object);
    }
    if dirty.all {
        written.retain(|id, _| parts.contains_key(id));
    }
    for (instance, objects) in parts {
        let seen = stores.readiness(&objects);
        if written.get(&instance).is_some_and(|old| same(old, &seen)) {
            continue;
        }
        if db::observed::upsert(pool, instance, &seen).await? {
            changes.changed("instance", instance);
        }
        written.insert(instance, seen);
    }
    Ok(())
}

fn same(a: &Readiness, b: &Readiness) -> bool {
    (a.verdict, &a.sentence, &a.parts) == (b.verdict, &b.sentence, &b.parts)
}
