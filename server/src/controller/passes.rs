//! What the passes of every kind share: a malformed object is set apart, a failed one waits, and both are counted and named in the log.

use super::{
    Backoff, PAUSED,
    run::{Guarded, Pace},
};
use crate::{
    cluster::{CONTROLLER, trouble::plain},
    provision::Fault,
};
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    core::object::HasStatus,
    runtime::{controller::Action, reflector::ObjectRef},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{sync::mpsc, time::Instant};
use tracing::{Instrument, Span};

/// What a pass over what is not the newest waits for.
pub(super) const STALE: &str = "the watch to show the newest of it";

pub(super) type Key<K> = ObjectRef<Guarded<K>>;

/// How a kind is called in the log and in metrics.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// The metrics' label.
    pub resource: &'static str,
    /// Event of a malformed object.
    pub quarantined: &'static str,
    /// Event of a failed pass.
    pub failed: &'static str,
}

/// A kind that has passes.
pub(super) trait Pass: Sized + Send + Sync + 'static {
    /// The kind.
    type Of: Resource<DynamicType = ()> + HasStatus + Send + Sync + 'static;
    /// How it is called.
    const WORDS: Words;
    /// What it shares.
    fn shared(&self) -> &Shared<Self::Of>;
    /// What everything about one object is logged in: its kind is the field that names it (contract §1.5).
    fn span(name: &str) -> Span;
    /// An object is gone, and what was kept of it by its name.
    fn forget(&self, _name: &str) {}
    /// One pass over one object.
    fn pass(&self, of: &Self::Of) -> impl Future<Output = Result<Action, Fault>> + Send;
}

/// What one kind's passes share.
pub(super) struct Shared<K: Resource<DynamicType = ()> + HasStatus> {
    /// For requests.
    pub client: Client,
    /// The apps namespace.
    pub namespace: String,
    /// Spans.
    pub pace: Pace,
    wake: mpsc::UnboundedSender<Key<K>>,
    backoff: Backoff<Key<K>>,
    quarantined: Mutex<HashMap<Key<K>, String>>,
    /// Statuses as last written and the version they made, by name, until the watch shows them.
    written: Mutex<HashMap<String, (u64, K::Status)>>,
}

impl<K: Resource<DynamicType = ()> + HasStatus + 'static> Shared<K> {
    /// None has failed yet. `wake` takes what need not wait any longer.
    pub fn new(
        client: Client,
        namespace: &str,
        pace: Pace,
        wake: mpsc::UnboundedSender<Key<K>>,
    ) -> Self {
        Self {
            client,
            namespace: namespace.into(),
            pace,
            wake,
            backoff: Backoff::default(),
            quarantined: Mutex::default(),
            written: Mutex::default(),
        }
    }

    /// The next look at an object that nothing wakes before.
    pub fn look_again(&self, ready: bool) -> Action {
        Action::requeue(if ready {
            self.pace.ready
        } else {
            self.pace.pending
        })
    }

    /// The object, with the status that was last written where the watch does not show that one yet: the next is judged by it.
    pub fn as_written(&self, of: &K) -> K
    where
        K: Clone,
        K::Status: Clone,
    {
        let mut of = of.clone();
        let mut written = lock(&self.written);
        match written.get(&of.name_any()) {
            Some((at, status)) if version(&of) < *at => *of.status_mut() = Some(status.clone()),
            Some(_) => _ = written.remove(&of.name_any()),
            None => {}
        }
        of
    }

    /// Applies an object's status. What another wrote there by other means is taken over by force, once.
    pub async fn write_status(
        &self,
        of: &K,
        status: K::Status,
        message: Option<&String>,
    ) -> Result<(), Fault>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
        K::Status: Serialize,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = of.name_any();
        let mut patch = json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()),
            "metadata": {"name": name, "uid": of.uid()},
            "status": &status,
        });
        // Said even when there is none: another's old words would stay beside it.
        patch["status"]["message"] = json!(message);
        let (patch, params) = (Patch::Apply(&patch), PatchParams::apply(CONTROLLER));
        let now = match api.patch_status(&name, &params, &patch).await {
            Err(kube::Error::Api(s)) if s.code == 409 && s.reason == "Conflict" => {
                api.patch_status(&name, &params.force(), &patch).await?
            }
            other => other?,
        };
        lock(&self.written).insert(name, (version(&now), status));
        Ok(())
    }

    /// Asks the API server whether `of` is still the newest, before a pass overwrites or deletes what another may have written: a watch may
    /// be cut without knowing, a relist may show what was, and two controllers would go on undoing each other's work.
    ///
    /// # Errors
    /// [`Fault::Outage`] where it is not: the watch has yet to show what is there.
    pub async fn must_be_newest(&self, of: &K) -> Result<(), Fault>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        // By `list`, a right that every installation has given.
        let named = ListParams::default().fields(&format!("metadata.name={}", of.name_any()));
        let found = api.list_metadata(&named).await?.items.into_iter().next();
        let newest = found.is_some_and(|now| {
            now.uid() == of.uid()
                && now.metadata.generation == of.meta().generation
                && now.metadata.deletion_timestamp.is_none()
                // A pause is no generation, and stops all writing.
                && now.annotations().get(PAUSED) == of.annotations().get(PAUSED)
        });
        if newest {
            return Ok(());
        }
        Err(Fault::Outage {
            what: STALE.into(),
            error: "it has changed since, or is gone".into(),
        })
    }

    /// Sets a malformed object apart, or lets it in again. True when that is new.
    fn quarantine(&self, words: Words, key: &Key<K>, error: Option<&String>) -> bool {
        let mut all = lock(&self.quarantined);
        let before = match error {
            Some(error) => all.insert(key.clone(), error.clone()),
            None => all.remove(key),
        };
        metrics::gauge!("svcforge_controller_quarantined", "resource" => words.resource)
            .set(all.len() as f64);
        before.as_ref() != error
    }
}

/// Why an object is paused, if its annotation says so.
pub(super) fn paused(of: &impl ResourceExt) -> Option<String> {
    match of.annotations().get(PAUSED)?.trim() {
        why if ["", "false", "0"].contains(&why.to_ascii_lowercase().as_str()) => None,
        why if ["true", "1"].contains(&why.to_ascii_lowercase().as_str()) => {
            Some(format!("paused by the annotation {PAUSED}"))
        }
        why => Some(format!("paused by the annotation {PAUSED}: {}", plain(why))),
    }
}

/// How new an object is; the API server's versions count up.
pub(super) fn version<K: Resource>(object: &K) -> u64 {
    let version = object.meta().resource_version.as_deref();
    version.and_then(|v| v.parse().ok()).unwrap_or(0)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An object is gone.
pub(super) fn forget<P: Pass>(cx: &P, name: &str) {
    cx.forget(name);
    let shared = cx.shared();
    let key = ObjectRef::new(name).within(&shared.namespace);
    shared.backoff.forget(&key);
    shared.quarantine(P::WORDS, &key, None);
    lock(&shared.written).remove(name);
}

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct Failed(#[from] Fault);

/// One pass, as kube's runtime calls it.
pub(super) async fn pass<P: Pass>(
    object: Arc<Guarded<P::Of>>,
    cx: Arc<P>,
) -> Result<Action, Failed> {
    let (key, shared) = (ObjectRef::from_obj(&*object), cx.shared());
    let of = match &object.0 {
        Ok(of) => of,
        // It stops nobody else; a change of it is looked at again.
        Err(invalid) => {
            if shared.quarantine(P::WORDS, &key, Some(&invalid.error)) {
                tracing::warn!(event = P::WORDS.quarantined, resource = P::WORDS.resource, name = %object.name_any(), error = %invalid.error);
            }
            return Ok(Action::await_change());
        }
    };
    shared.quarantine(P::WORDS, &key, None);
    let done = cx.pass(of).instrument(P::span(&of.name_any())).await;
    let outcome = if done.is_ok() { "done" } else { "failed" };
    metrics::counter!("svcforge_controller_passes_total", "resource" => P::WORDS.resource, "outcome" => outcome).increment(1);
    let action = done?;
    for waiting in shared.backoff.succeeded(&key, Instant::now()) {
        let _ = shared.wake.send(waiting);
    }
    Ok(action)
}

/// How long a failed object waits, as kube's runtime asks.
pub(super) fn failed<P: Pass>(object: Arc<Guarded<P::Of>>, error: &Failed, cx: Arc<P>) -> Action {
    let outage = matches!(error.0, Fault::Outage { .. });
    let pause = cx.shared().backoff.failed(
        ObjectRef::from_obj(&*object),
        object.meta().generation,
        outage,
        crate::ids::jitter(),
        Instant::now(),
    );
    let _in = P::span(&object.name_any()).entered();
    tracing::warn!(event = P::WORDS.failed, resource = P::WORDS.resource, name = %object.name_any(), error = %error, again_s = pause.as_secs());
    Action::requeue(pause)
}
