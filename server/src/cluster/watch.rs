//! What the cluster shows, kept fresh by watches: one set of stores, for all namespaces (the observer) or for one (a worker
//! that waits for its own release).

use super::{Clients, ServiceDefinition};
use crate::db::observed::ObjectRef;
use futures::{FutureExt, StreamExt};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::{DaemonSet, Deployment, StatefulSet},
        batch::v1::Job,
        core::v1::{PersistentVolumeClaim, Pod, Service},
    },
};
use kube::{
    Api, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        reflector::{self, Lookup, ObjectRef as Key, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, sync::Arc};
use svcforge_app::domain::{Part, Readiness, Verdict};
use tokio::{sync::mpsc, task::JoinSet};

/// Stores of everything readiness looks at.
pub struct Stores {
    deployments: Store<Deployment>,
    sets: Store<StatefulSet>,
    daemons: Store<DaemonSet>,
    jobs: Store<Job>,
    claims: Store<PersistentVolumeClaim>,
    services: Store<Service>,
    pods: Store<Pod>,
    definitions: Store<DeserializeGuard<ServiceDefinition>>,
    // Ends the watches when the stores are dropped.
    _watches: JoinSet<()>,
}

impl Stores {
    /// Starts the watches. The channel tells the namespace of everything that changed.
    pub fn start(clients: &Clients, namespace: Option<&str>) -> (Self, mpsc::Receiver<String>) {
        let (tx, rx) = mpsc::channel(4096);
        let mut watches = JoinSet::new();
        let stores = Self {
            deployments: reflect(clients, namespace, &tx, &mut watches),
            sets: reflect(clients, namespace, &tx, &mut watches),
            daemons: reflect(clients, namespace, &tx, &mut watches),
            jobs: reflect(clients, namespace, &tx, &mut watches),
            claims: reflect(clients, namespace, &tx, &mut watches),
            services: reflect(clients, namespace, &tx, &mut watches),
            pods: reflect(clients, namespace, &tx, &mut watches),
            definitions: reflect(clients, namespace, &tx, &mut watches),
            _watches: watches,
        };
        (stores, rx)
    }

    /// Waits until every store has had its first full list; definitions are not waited for, their CRD may be missing.
    pub async fn ready(&self) {
        let _ = self.deployments.wait_until_ready().await;
        let _ = self.sets.wait_until_ready().await;
        let _ = self.daemons.wait_until_ready().await;
        let _ = self.jobs.wait_until_ready().await;
        let _ = self.claims.wait_until_ready().await;
        let _ = self.services.wait_until_ready().await;
        let _ = self.pods.wait_until_ready().await;
    }

    /// How well these objects serve. Kinds without a readiness of their own say nothing.
    pub fn readiness(&self, objects: &[ObjectRef]) -> Readiness {
        let parts = objects.iter().filter_map(|o| self.part(o)).collect();
        Readiness::of(parts, crate::clock::now())
    }

    fn part(&self, o: &ObjectRef) -> Option<Part> {
        use super::readiness as judge;
        let found = match o.kind.as_str() {
            "Deployment" => get(&self.deployments, o)
                .map(|d| judge::deployment(&d, &self.pods_of(o, selector_of_deployment(&d)))),
            "StatefulSet" => get(&self.sets, o)
                .map(|s| judge::stateful_set(&s, &self.pods_of(o, selector_of_set(&s)))),
            "DaemonSet" => get(&self.daemons, o).map(|d| judge::daemon_set(&d)),
            "Job" => get(&self.jobs, o).map(|j| judge::job(&j)),
            "PersistentVolumeClaim" => get(&self.claims, o).map(|c| judge::claim(&c)),
            "Service" => get(&self.services, o).map(|s| judge::service(&s)),
            "ServiceDefinition" => return Some(self.definition(o)),
            _ => return None,
        };
        Some(found.unwrap_or_else(|| absent(o, Verdict::Failed, "it is missing from the cluster")))
    }

    fn definition(&self, o: &ObjectRef) -> Part {
        let found = get(&self.definitions, o);
        match found.as_deref().map(|d| &d.0) {
            Some(Ok(of)) => super::readiness::definition(of),
            Some(Err(invalid)) => absent(
                o,
                Verdict::Unknown,
                &format!("it cannot be read: {invalid}"),
            ),
            None if self.definitions.wait_until_ready().now_or_never().is_none() => {
                absent(o, Verdict::Unknown, "definitions have not been read yet")
            }
            None => absent(o, Verdict::Failed, "it is missing from the cluster"),
        }
    }

    fn pods_of(
        &self,
        o: &ObjectRef,
        labels: Option<&std::collections::BTreeMap<String, String>>,
    ) -> Vec<Arc<Pod>> {
        let Some(labels) = labels.filter(|l| !l.is_empty()) else {
            return vec![];
        };
        let matches = |pod: &Pod| {
            ResourceExt::namespace(pod).as_deref() == Some(&o.namespace)
                && labels.iter().all(|(k, v)| pod.labels().get(k) == Some(v))
        };
        self.pods
            .state()
            .into_iter()
            .filter(|pod| matches(pod))
            .collect()
    }
}

fn absent(o: &ObjectRef, verdict: Verdict, sentence: &str) -> Part {
    Part {
        kind: o.kind.clone(),
        name: o.name.clone(),
        verdict,
        sentence: sentence.into(),
        ready: 0,
        desired: 0,
    }
}

fn selector_of_deployment(d: &Deployment) -> Option<&std::collections::BTreeMap<String, String>> {
    d.spec.as_ref()?.selector.match_labels.as_ref()
}

fn selector_of_set(s: &StatefulSet) -> Option<&std::collections::BTreeMap<String, String>> {
    s.spec.as_ref()?.selector.match_labels.as_ref()
}

fn get<K>(store: &Store<K>, o: &ObjectRef) -> Option<Arc<K>>
where
    K: Lookup<DynamicType = ()> + Clone + 'static,
{
    store.get(&Key::new(&o.name).within(&o.namespace))
}

fn reflect<K>(
    clients: &Clients,
    namespace: Option<&str>,
    changed: &mpsc::Sender<String>,
    watches: &mut JoinSet<()>,
) -> Store<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let api: Api<K> = match namespace {
        Some(namespace) => Api::namespaced(clients.watch.clone(), namespace),
        None => Api::all(clients.watch.clone()),
    };
    let (store, writer) = reflector::store();
    let changed = changed.clone();
    // Streaming lists, so that the first list does not go through a client without a timeout as one endless request.
    let stream = watcher(api, watcher::Config::default().streaming_lists())
        .default_backoff()
        .modify(|object| {
            object.managed_fields_mut().clear();
        })
        .reflect(writer);
    watches.spawn(async move {
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::Delete(object)) => {
                    let _ = changed
                        .send(ResourceExt::namespace(&object).unwrap_or_default())
                        .await;
                }
                Ok(watcher::Event::InitDone) => {
                    let _ = changed.send(String::new()).await;
                }
                // The end of the list tells for all of it: the channel must not fill before anybody reads.
                Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
                Err(error) => {
                    tracing::debug!(event = "watch.retried", kind = %K::kind(&()), %error)
                }
            }
        }
    });
    store
}
