//! Beside the leader: what is said of ServiceDefinitions and Workflows goes to Postgres, on change only, gathered for a moment; and twice a
//! minute that it is still so, or why nobody can tell.

use super::{
    Clients, INSTALLATION, INSTANCE, OF_WORKFLOW, ServiceDefinition, Workflow, trouble::plain,
};
use crate::{changes::Changes, db};
use futures::{FutureExt, Stream, StreamExt};
use kube::{
    Api, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        reflector::{self, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use sqlx::PgPool;
use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};
use svcforge_app::domain::{Definition, InstanceId, StageView, WorkflowView};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long changes are gathered.
const GATHER: Duration = Duration::from_millis(500);
/// Pause after what could not be written.
const AGAIN: Duration = Duration::from_secs(5);
/// How often it is said that what is kept is still so.
const BEAT: Duration = Duration::from_secs(30);

/// A watch that cannot be taken up fails again within that: its back-off is at most 30 s, and so is the wait for an answer.
const FAILS: Duration = Duration::from_secs(75);

type Guarded<K> = DeserializeGuard<K>;

/// Observes until told to stop.
pub async fn observe_definitions(
    clients: Clients,
    namespace: String,
    installation: String,
    pool: PgPool,
    changes: Changes,
    stop: CancellationToken,
) {
    let (definitions, a) = reflect::<ServiceDefinition>(&clients, &namespace);
    let (workflows, b) = reflect::<Workflow>(&clients, &namespace);
    let events = futures::stream::select(
        a.map(|seen| ("ServiceDefinitions", seen)),
        b.map(|seen| ("Workflows", seen)),
    );
    let mut events = std::pin::pin!(events);
    let mut kept = Kept::default();
    let mut again = false;
    let mut failing = BTreeMap::new();
    let (mut beat, mut said) = (tokio::time::interval(BEAT), None);
    loop {
        let mut due = false;
        tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => note(&mut failing, event),
            () = tokio::time::sleep(AGAIN), if again => {}
            _ = beat.tick() => due = true,
        }
        let until = tokio::time::sleep(GATHER);
        tokio::pin!(until);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => note(&mut failing, event),
                () = &mut until => break,
            }
        }
        // One CRD may be missing: what cannot be read stays as it was.
        let seen = Kept {
            definitions: match ready(&definitions) {
                None => kept.definitions.clone(),
                Some(()) => {
                    let all = definitions.state();
                    let all = all.iter().filter_map(|d| definition(d, &installation));
                    Some(all.map(|d| (d.name.clone(), d)).collect())
                }
            },
            workflows: match ready(&workflows) {
                None => kept.workflows.clone(),
                Some(()) => {
                    let all = workflows.state();
                    let all = all.iter().filter_map(workflow);
                    Some(all.map(|w| (w.name.clone(), w)).collect())
                }
            },
        };
        let error = unread(&failing, &seen);
        let news = seen != kept || error != said;
        if !news && !due {
            again = false;
            continue;
        }
        let done = keep(&pool, &namespace, (&kept, &seen), error.as_deref()).await;
        again = done.is_err();
        match done {
            Ok(()) => {
                (kept, said) = (seen, error);
                if news {
                    changes.changed("definition", &namespace);
                }
            }
            // A leader that is not one any more writes what is true all the same.
            Err(error) => tracing::warn!(event = "definitions.not_kept", %error),
        }
    }
}

/// What was kept; none of a kind that could not be read yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kept {
    definitions: Option<BTreeMap<String, Definition>>,
    workflows: Option<BTreeMap<String, WorkflowView>>,
}

/// Remembers why a kind cannot be read, until it can.
fn note(
    failing: &mut BTreeMap<&'static str, (String, Instant)>,
    event: Option<(&'static str, Result<(), String>)>,
) {
    match event {
        Some((kind, Err(error))) => _ = failing.insert(kind, (error, Instant::now())),
        Some((kind, Ok(()))) => _ = failing.remove(kind),
        None => {}
    }
}

/// Why what is kept may not be so, in words.
fn unread(failing: &BTreeMap<&str, (String, Instant)>, seen: &Kept) -> Option<String> {
    // A watch that is taken up again at rest has nothing to show: that it fails no more is all that it says.
    let mut lasting = failing.iter().filter(|(_, (_, at))| at.elapsed() < FAILS);
    if let Some((kind, (error, _))) = lasting.next() {
        return Some(format!("{kind}: {error}"));
    }
    match (&seen.definitions, &seen.workflows) {
        (Some(_), Some(_)) => None,
        _ => Some("they have not been listed yet".into()),
    }
}

fn ready<K>(store: &Store<K>) -> Option<()>
where
    K: reflector::Lookup + Clone + 'static,
    K::DynamicType: Eq + std::hash::Hash + Clone,
{
    store.wait_until_ready().now_or_never()?.ok()
}

fn reflect<K>(
    clients: &Clients,
    namespace: &str,
) -> (
    Store<Guarded<K>>,
    impl Stream<Item = Result<(), String>> + Send + use<K>,
)
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let api: Api<Guarded<K>> = Api::namespaced(clients.watch.clone(), namespace);
    let (store, writer) = reflector::store();
    let events = watcher(api, watcher::Config::default().streaming_lists())
        .default_backoff()
        .modify(|object| object.managed_fields_mut().clear())
        .reflect(writer)
        .map(|event| event.map(|_| ()).map_err(|e| plain(&e.to_string())));
    (store, events)
}

fn created<K: Resource>(object: &K) -> jiff::Timestamp {
    object
        .meta()
        .creation_timestamp
        .as_ref()
        .map_or(jiff::Timestamp::UNIX_EPOCH, |t| t.0)
}

fn definition(object: &Arc<Guarded<ServiceDefinition>>, installation: &str) -> Option<Definition> {
    let of = object.0.as_ref().ok()?;
    let ours = of
        .labels()
        .get(INSTALLATION)
        .is_some_and(|i| i == installation);
    let instance = of
        .labels()
        .get(INSTANCE)
        .filter(|_| ours)
        .and_then(|id| id.parse().ok());
    let status = of.status.clone().unwrap_or_default();
    let old = is_old(status.observed_generation, of);
    Some(Definition {
        namespace: of.namespace().unwrap_or_default(),
        name: of.name_any(),
        owner: of.spec.owner.clone(),
        image: of.spec.image.clone(),
        port: of.spec.port,
        replicas: of.spec.replicas,
        available: status.available_replicas,
        ready: of.is_ready(),
        phase: if old { PENDING.into() } else { status.phase },
        message: if old {
            Some(NOT_TAKEN_UP.into())
        } else {
            status.message
        },
        workflow: of.labels().get(OF_WORKFLOW).cloned(),
        instance: instance.map(InstanceId),
        created_at: created(of),
    })
}

fn workflow(object: &Arc<Guarded<Workflow>>) -> Option<WorkflowView> {
    let of = object.0.as_ref().ok()?;
    let mut status = of.status.clone().unwrap_or_default();
    if is_old(status.observed_generation, of) {
        (status.ready, status.phase) = (false, PENDING.into());
        status.message = Some(NOT_TAKEN_UP.into());
    }
    let stages = of.spec.stages.iter().map(|stage| {
        let seen = status.stages.iter().find(|s| s.name == stage.name);
        StageView {
            name: stage.name.clone(),
            depends_on: stage.depends_on.clone(),
            ready: seen.is_some_and(|s| s.ready),
            phase: seen.map_or_else(String::new, |s| s.phase.clone()),
            message: seen.and_then(|s| s.message.clone()),
        }
    });
    Some(WorkflowView {
        namespace: of.namespace().unwrap_or_default(),
        name: of.name_any(),
        ready: status.ready,
        phase: status.phase,
        progress: status.progress,
        message: status.message,
        stages: stages.collect(),
        created_at: created(of),
    })
}

const PENDING: &str = "Pending";
const NOT_TAKEN_UP: &str = "its controller has not taken the change up yet";

/// Whether a status speaks of an older spec. One that was never written speaks of none.
fn is_old(observed: Option<i64>, of: &impl ResourceExt) -> bool {
    observed.is_some() && observed < of.meta().generation
}

async fn keep(
    pool: &PgPool,
    namespace: &str,
    (old, new): (&Kept, &Kept),
    error: Option<&str>,
) -> sqlx::Result<()> {
    let mut tx = pool.begin().await?;
    if let Some(all) = &new.definitions {
        let (changed, names) = differing(old.definitions.as_ref(), all);
        db::definition::keep_definitions(&mut tx, namespace, &changed, &names).await?;
    }
    if let Some(all) = &new.workflows {
        let (changed, names) = differing(old.workflows.as_ref(), all);
        db::definition::keep_workflows(&mut tx, namespace, &changed, &names).await?;
    }
    db::definition::set_read(&mut *tx, namespace, error).await?;
    tx.commit().await
}

/// What is new or other than it was, and the names of all.
fn differing<T: Clone + PartialEq>(
    old: Option<&BTreeMap<String, T>>,
    new: &BTreeMap<String, T>,
) -> (Vec<T>, Vec<String>) {
    let was = |name: &String| old.and_then(|o| o.get(name));
    let changed = new.iter().filter(|(name, one)| was(name) != Some(*one));
    (
        changed.map(|(_, one)| one.clone()).collect(),
        new.keys().cloned().collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_does_not_come_again_is_over() {
        let seen = Kept {
            definitions: Some(BTreeMap::new()),
            workflows: Some(BTreeMap::new()),
        };
        let mut failing = BTreeMap::new();
        assert_eq!(unread(&failing, &seen), None);
        note(&mut failing, Some(("Workflows", Err("503".into()))));
        assert_eq!(unread(&failing, &seen).as_deref(), Some("Workflows: 503"));
        let before = Instant::now().checked_sub(FAILS);
        failing.insert("Workflows", ("503".into(), before.expect("up for longer")));
        assert_eq!(unread(&failing, &seen), None, "taken up again, at rest");
        note(&mut failing, Some(("Workflows", Err("503".into()))));
        note(&mut failing, Some(("Workflows", Ok(()))));
        assert_eq!(unread(&failing, &seen), None, "it shows something");
        assert!(
            unread(&failing, &Kept::default()).is_some(),
            "not listed yet"
        );
    }
}
