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
    api::{Patch, PatchParams},
    runtime::{controller::Action, reflector::ObjectRef},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{sync::mpsc, time::Instant};
use tracing::Instrument;

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
    type Of: Resource<DynamicType = ()> + Send + Sync + 'static;
    /// How it is called.
    const WORDS: Words;
    /// What it shares.
    fn shared(&self) -> &Shared<Self::Of>;
    /// One pass over one object.
    fn pass(&self, of: &Self::Of) -> impl Future<Output = Result<Action, Fault>> + Send;
}

/// What one kind's passes share.
pub(super) struct Shared<K: Resource<DynamicType = ()>> {
    /// For requests.
    pub client: Client,
    /// The apps namespace.
    pub namespace: String,
    /// Spans.
    pub pace: Pace,
    wake: mpsc::UnboundedSender<Key<K>>,
    backoff: Backoff<Key<K>>,
    quarantined: Mutex<HashMap<Key<K>, String>>,
}

impl<K: Resource<DynamicType = ()> + 'static> Shared<K> {
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

    /// Applies an object's status. What another wrote there by other means is taken over by force, once.
    pub async fn write_status<S: Serialize>(
        &self,
        of: &K,
        status: &S,
        message: Option<&String>,
    ) -> Result<(), Fault>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = of.name_any();
        let mut patch = json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()),
            "metadata": {"name": name, "uid": of.uid()},
            "status": status,
        });
        // Said even when there is none: another's old words would stay beside it.
        patch["status"]["message"] = json!(message);
        let (patch, params) = (Patch::Apply(&patch), PatchParams::apply(CONTROLLER));
        match api.patch_status(&name, &params, &patch).await {
            Err(kube::Error::Api(s)) if s.code == 409 && s.reason == "Conflict" => {
                api.patch_status(&name, &params.force(), &patch).await?;
            }
            other => {
                other?;
            }
        }
        Ok(())
    }

    /// Sets a malformed object apart, or lets it in again. True when that is new.
    fn quarantine(&self, words: Words, key: &Key<K>, error: Option<&String>) -> bool {
        let mut all = self
            .quarantined
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
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
        "" | "false" | "0" => None,
        "true" | "1" => Some(format!("paused by the annotation {PAUSED}")),
        why => Some(format!("paused by the annotation {PAUSED}: {}", plain(why))),
    }
}

/// An object is gone.
pub(super) fn forget<P: Pass>(cx: &P, name: &str) {
    let shared = cx.shared();
    let key = ObjectRef::new(name).within(&shared.namespace);
    shared.backoff.forget(&key);
    shared.quarantine(P::WORDS, &key, None);
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
    let span = tracing::info_span!("pass", resource = P::WORDS.resource, name = %of.name_any());
    let done = cx.pass(of).instrument(span).await;
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
    tracing::warn!(event = P::WORDS.failed, resource = P::WORDS.resource, name = %object.name_any(), error = %error, again_s = pause.as_secs());
    Action::requeue(pause)
}
