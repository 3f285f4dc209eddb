//! One pass over one ServiceDefinition: Deployment, Service, status; the first error ends it.

use super::{
    Backoff, OF, PAUSED,
    dormant::Right,
    plan::{Owned, Plan, plan},
    readiness::rollout,
    run::{Guarded, Pace},
    status::{Seen, differs, status},
};
use crate::{
    cluster::{CONTROLLER, ServiceDefinition, ServiceDefinitionStatus},
    provision::Fault,
};
use futures::{Stream, StreamExt};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{Pod, Service},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        controller::Action,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant};
use tracing::Instrument;

/// What it needs in the apps namespace. Pods are read where they may be, for better sentences.
pub(super) const RIGHTS: &[Right] = &[
    ("polychrome.dev", "servicedefinitions", &["list", "watch"]),
    ("polychrome.dev", "servicedefinitions/status", &["patch"]),
    ("apps", "deployments", &["list", "watch", "create", "patch"]),
    ("", "services", &["list", "watch", "create", "patch"]),
];

/// For so long what was written is believed over what the watch shows.
const WATCH_LAG: Duration = Duration::from_secs(10);

type Key = ObjectRef<Guarded<ServiceDefinition>>;

/// What passes share.
pub(super) struct Definitions {
    client: Client,
    namespace: String,
    pace: Pace,
    pods: Store<Pod>,
    wake: mpsc::UnboundedSender<Key>,
    backoff: Backoff<Key>,
    /// Status as last written, by uid.
    written: Mutex<HashMap<String, (Instant, ServiceDefinitionStatus)>>,
    /// Resource versions that an apply returned: their echo in the watch tells nothing new.
    returned: Arc<Mutex<HashMap<String, String>>>,
    quarantined: Mutex<HashMap<Key, String>>,
}

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct Failed(#[from] Fault);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Definitions {
    pub(super) fn new(
        client: Client,
        namespace: &str,
        pace: Pace,
        pods: Store<Pod>,
        wake: mpsc::UnboundedSender<Key>,
    ) -> Self {
        Self {
            client,
            namespace: namespace.into(),
            pace,
            pods,
            wake,
            backoff: Backoff::default(),
            written: Mutex::default(),
            returned: Arc::default(),
            quarantined: Mutex::default(),
        }
    }

    /// A watch's objects, but for the echoes of our own applies.
    pub(super) fn without_echoes<K, S>(
        &self,
        objects: S,
    ) -> impl Stream<Item = Result<K, watcher::Error>> + Send + use<K, S>
    where
        K: Resource<DynamicType = ()> + Send,
        S: Stream<Item = Result<K, watcher::Error>> + Send,
    {
        let returned = self.returned.clone();
        objects.filter(move |object| {
            let echo = object.as_ref().is_ok_and(|o| {
                o.meta().resource_version.is_some()
                    && lock(&returned).get(&echo_key(o)) == o.meta().resource_version.as_ref()
            });
            std::future::ready(!echo)
        })
    }

    async fn apply<K>(&self, object: &K, dry_run: bool) -> Result<K, Fault>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Serialize
            + DeserializeOwned
            + Clone
            + Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = PatchParams {
            dry_run,
            ..PatchParams::apply(CONTROLLER).force()
        };
        let applied = api
            .patch(&object.name_any(), &params, &Patch::Apply(object))
            .await?;
        if let (false, Some(version)) = (dry_run, applied.meta().resource_version.clone()) {
            lock(&self.returned).insert(echo_key(&applied), version);
        }
        Ok(applied)
    }

    /// Applies the whole owned set, or asks what applying it would come to.
    async fn serve(
        &self,
        of: &ServiceDefinition,
        owned: &Owned,
        dry_run: bool,
    ) -> Result<super::Rollout, Fault> {
        let deployment: Deployment = self.apply(&owned.deployment, dry_run).await?;
        self.apply::<Service>(&owned.service, dry_run).await?;
        let name = of.name_any();
        let pods: Vec<Arc<Pod>> = self
            .pods
            .state()
            .into_iter()
            .filter(|p| p.labels().get(OF) == Some(&name))
            .collect();
        Ok(rollout(Some(&deployment), &pods))
    }

    /// Writes the status if something of it differs. An earlier controller may have written it by other means: its fields are
    /// taken over by force, once.
    async fn write(
        &self,
        of: &ServiceDefinition,
        new: ServiceDefinitionStatus,
    ) -> Result<(), Fault> {
        let uid = of.uid().unwrap_or_default();
        let recent = lock(&self.written)
            .get(&uid)
            .filter(|(at, _)| at.elapsed() < WATCH_LAG)
            .map(|(_, s)| s.clone());
        if !differs(recent.as_ref().or(of.status.as_ref()), &new) {
            return Ok(());
        }
        let api: Api<ServiceDefinition> = Api::namespaced(self.client.clone(), &self.namespace);
        let patch = json!({
            "apiVersion": "polychrome.dev/v1alpha1", "kind": "ServiceDefinition",
            "metadata": {"name": of.name_any(), "uid": uid},
            "status": new,
        });
        let (name, patch) = (of.name_any(), Patch::Apply(&patch));
        let params = PatchParams::apply(CONTROLLER);
        match api.patch_status(&name, &params, &patch).await {
            Err(kube::Error::Api(s)) if s.code == 409 && s.reason == "Conflict" => {
                api.patch_status(&name, &params.force(), &patch).await?;
            }
            other => {
                other?;
            }
        }
        metrics::counter!("svcforge_controller_status_writes_total").increment(1);
        tracing::info!(event = "definition.status", ready = new.ready, available = new.available_replicas, phase = %new.phase);
        lock(&self.written).insert(uid, (Instant::now(), new));
        Ok(())
    }

    async fn pass(&self, of: &ServiceDefinition) -> Result<Action, Fault> {
        let owned = match plan(of) {
            Plan::Noop => return Ok(Action::await_change()),
            Plan::Refuse(faults) => {
                self.write(of, status(of, &Seen::Refused(faults), crate::clock::now()))
                    .await?;
                return Ok(Action::requeue(self.pace.ready));
            }
            Plan::Apply(owned) => owned,
        };
        let paused = paused(of);
        let seen = match (self.serve(of, &owned, paused.is_some()).await, paused) {
            (Ok(rollout), None) => Seen::Applied(rollout),
            (Ok(rollout), Some(why)) => Seen::Paused(rollout, why),
            (Err(fault @ Fault::Rejected(_)), _) => {
                let why = crate::cluster::trouble::plain(&fault.to_string());
                self.write(of, status(of, &Seen::Rejected(why), crate::clock::now()))
                    .await?;
                return Err(fault);
            }
            (Err(fault), _) => return Err(fault),
        };
        let new = status(of, &seen, crate::clock::now());
        let ready = new.ready;
        self.write(of, new).await?;
        Ok(Action::requeue(if ready {
            self.pace.ready
        } else {
            self.pace.pending
        }))
    }
}

/// Why it is paused, if its annotation says so.
fn paused(of: &ServiceDefinition) -> Option<String> {
    let value = of.annotations().get(PAUSED)?.trim();
    match value {
        "" | "false" | "0" => None,
        "true" | "1" => Some(format!("paused by the annotation {PAUSED}")),
        why => Some(format!(
            "paused by the annotation {PAUSED}: {}",
            crate::cluster::trouble::plain(why)
        )),
    }
}

fn echo_key<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!("{}/{}", K::kind(&()), object.name_any())
}

/// One pass.
pub(super) async fn pass(
    object: Arc<Guarded<ServiceDefinition>>,
    cx: Arc<Definitions>,
) -> Result<Action, Failed> {
    let key = ObjectRef::from_obj(&*object);
    let of = match &object.0 {
        Ok(of) => of,
        // It stops nobody else; a change of it is looked at again.
        Err(invalid) => {
            let mut quarantined = lock(&cx.quarantined);
            if quarantined.insert(key, invalid.error.clone()).as_ref() != Some(&invalid.error) {
                tracing::warn!(event = "definition.quarantined", servicedefinition = %object.name_any(), error = %invalid.error);
            }
            metrics::gauge!("svcforge_controller_quarantined", "resource" => "servicedefinitions")
                .set(quarantined.len() as f64);
            return Ok(Action::await_change());
        }
    };
    {
        let mut quarantined = lock(&cx.quarantined);
        quarantined.remove(&key);
        metrics::gauge!("svcforge_controller_quarantined", "resource" => "servicedefinitions")
            .set(quarantined.len() as f64);
    }
    let span = tracing::info_span!("definition", servicedefinition = %of.name_any());
    let done = cx.pass(of).instrument(span).await;
    let outcome = if done.is_ok() { "done" } else { "failed" };
    metrics::counter!("svcforge_controller_passes_total", "resource" => "servicedefinitions", "outcome" => outcome).increment(1);
    let action = done?;
    for waiting in cx.backoff.succeeded(&key) {
        let _ = cx.wake.send(waiting);
    }
    Ok(action)
}

/// How long a failed object waits.
pub(super) fn failed(
    object: Arc<Guarded<ServiceDefinition>>,
    error: &Failed,
    cx: Arc<Definitions>,
) -> Action {
    // Gone meanwhile: nothing is left to do.
    let outage = matches!(error.0, Fault::Outage { .. });
    let pause = cx.backoff.failed(
        ObjectRef::from_obj(&*object),
        object.meta().generation,
        outage,
        crate::ids::jitter(),
    );
    tracing::warn!(event = "definition.failed", servicedefinition = %object.name_any(), error = %error, again_s = pause.as_secs());
    Action::requeue(pause)
}
