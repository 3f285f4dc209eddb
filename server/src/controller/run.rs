//! The two controllers, joined to their watches. Each sleeps until its own kind can be served.

use super::{
    OF, dormant,
    service_definition::{self, Definitions},
    workflow::{self, Workflows},
};
use crate::cluster::{Clients, ServiceDefinition, Workflow, trouble::trouble};
use futures::{Stream, StreamExt};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Service},
};
use kube::{
    Api, Resource, ResourceExt,
    api::ApiResource,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt, controller,
        reflector::{self, ObjectRef},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use std::{
    collections::HashMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Spans and limits.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Next look at what is ready, when nothing wakes it before.
    pub ready: Duration,
    /// Next look at what is not.
    pub pending: Duration,
    /// Between looks while something is missing.
    pub dormant: Duration,
    /// Changes of one object within that are one pass.
    pub debounce: Duration,
    /// Passes at once.
    pub concurrency: u16,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            ready: Duration::from_secs(300),
            pending: Duration::from_secs(15),
            dormant: dormant::LOOK_EVERY,
            debounce: Duration::from_millis(100),
            concurrency: 16,
        }
    }
}

/// Both controllers of one namespace.
#[derive(Clone)]
pub struct Controller {
    /// The cluster.
    pub clients: Clients,
    /// The apps namespace.
    pub namespace: String,
    /// Spans and limits.
    pub pace: Pace,
}

pub(super) type Guarded<K> = DeserializeGuard<K>;

impl Controller {
    /// Runs until told to stop; passes that have begun are finished.
    pub async fn run(self, stop: CancellationToken) {
        tokio::join!(self.definitions(&stop), self.workflows(&stop));
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.clients.watch.clone(), &self.namespace)
    }

    async fn definitions(&self, stop: &CancellationToken) {
        let resources = [ApiResource::erase::<ServiceDefinition>(&())];
        let (client, pace) = (&self.clients.request, &self.pace);
        let rights = service_definition::RIGHTS;
        if !dormant::wait_until_served(client, &self.namespace, &resources, rights, pace, stop)
            .await
        {
            return;
        }
        let (store, writer) = reflector::store();
        let objects = watch(self.api::<Guarded<ServiceDefinition>>(), all())
            .reflect(writer)
            .applied_objects();
        let (pods, pods_writer) = reflector::store();
        let labelled = all().labels(OF);
        let (wake, woken) = mpsc::unbounded_channel();
        let pod_changes = troubled(
            watch(self.api::<Pod>(), labelled.clone())
                .reflect(pods_writer)
                .touched_objects(),
        );
        let cx = Arc::new(Definitions::new(
            client.clone(),
            &self.namespace,
            *pace,
            pods,
            wake,
        ));
        let config = controller::Config::default()
            .concurrency(pace.concurrency)
            .debounce(pace.debounce);
        let deployments =
            cx.without_echoes(watch(self.api::<Deployment>(), labelled.clone()).touched_objects());
        let services = cx.without_echoes(watch(self.api::<Service>(), labelled).touched_objects());
        kube::runtime::Controller::for_stream(chosen(objects), store)
            .with_config(config)
            .owns_stream(deployments)
            .owns_stream(services)
            .reconcile_on(pod_changes)
            .reconcile_on(tokio_stream::wrappers::UnboundedReceiverStream::new(woken))
            .graceful_shutdown_on(stop.clone().cancelled_owned())
            .run(service_definition::pass, service_definition::failed, cx)
            .for_each(|_| std::future::ready(()))
            .await;
    }

    async fn workflows(&self, stop: &CancellationToken) {
        let resources = [
            ApiResource::erase::<Workflow>(&()),
            ApiResource::erase::<ServiceDefinition>(&()),
        ];
        let (client, pace) = (&self.clients.request, &self.pace);
        let rights = workflow::RIGHTS;
        if !dormant::wait_until_served(client, &self.namespace, &resources, rights, pace, stop)
            .await
        {
            return;
        }
        let (store, writer) = reflector::store();
        let objects = watch(self.api::<Guarded<Workflow>>(), all())
            .reflect(writer)
            .applied_objects();
        let stages = watch(
            self.api::<Guarded<ServiceDefinition>>(),
            all().labels(super::OF_WORKFLOW),
        )
        .touched_objects();
        let (wake, woken) = mpsc::unbounded_channel();
        let cx = Arc::new(Workflows::new(client.clone(), &self.namespace, *pace, wake));
        let config = controller::Config::default()
            .concurrency(pace.concurrency)
            .debounce(pace.debounce);
        kube::runtime::Controller::for_stream(chosen(objects), store)
            .with_config(config)
            .owns_stream(stages)
            .reconcile_on(tokio_stream::wrappers::UnboundedReceiverStream::new(woken))
            .graceful_shutdown_on(stop.clone().cancelled_owned())
            .run(workflow::pass, workflow::failed, cx)
            .for_each(|_| std::future::ready(()))
            .await;
    }
}

/// Streaming lists: the first list must not be one request without a deadline.
fn all() -> watcher::Config {
    watcher::Config::default().streaming_lists()
}

/// A watch that ends, a 410 or a broken frame is a relist after a pause; only what changes is said of its errors.
fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let mut said = String::new();
    watcher(api, config)
        .default_backoff()
        .inspect(move |event| match event {
            Err(error) => {
                metrics::counter!("svcforge_controller_watch_errors_total", "kind" => kind.clone())
                    .increment(1);
                let error = error.to_string();
                if said != error {
                    tracing::warn!(event = "controller.watch_failed", kind = %kind, error = %error);
                    said = error;
                }
            }
            Ok(watcher::Event::InitDone) => said.clear(),
            Ok(_) => {}
        })
        .modify(|object| object.managed_fields_mut().clear())
}

/// Of the objects of a kind only what an author changes wakes it, not the statuses that we write ourselves.
fn chosen<K>(
    objects: impl Stream<Item = Result<K, watcher::Error>> + Send,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send
where
    K: Resource + Send,
{
    let mut known = HashMap::<String, u64>::new();
    objects.filter(move |object| {
        let Ok(object) = object else {
            return std::future::ready(true);
        };
        let meta = object.meta();
        let mut hash = DefaultHasher::new();
        (
            meta.uid.as_ref(),
            meta.generation,
            meta.annotations.as_ref(),
            meta.labels.as_ref(),
        )
            .hash(&mut hash);
        (
            meta.deletion_timestamp.is_some(),
            meta.owner_references.as_ref().map(|o| format!("{o:?}")),
        )
            .hash(&mut hash);
        let new = hash.finish();
        let old = known.insert(object.name_any(), new);
        std::future::ready(old != Some(new))
    })
}

/// Definitions whose pods' trouble has changed.
fn troubled(
    pods: impl Stream<Item = Result<Pod, watcher::Error>> + Send,
) -> impl Stream<Item = ObjectRef<Guarded<ServiceDefinition>>> + Send {
    let mut known = HashMap::<String, String>::new();
    pods.filter_map(move |pod| {
        let trigger = pod.ok().and_then(|pod| {
            let sentence = match pod.metadata.deletion_timestamp {
                Some(_) => String::new(),
                None => trouble(&pod).map(|t| t.1).unwrap_or_default(),
            };
            let old = match sentence.is_empty() {
                true => known.remove(&pod.name_any()).unwrap_or_default(),
                false => known
                    .insert(pod.name_any(), sentence.clone())
                    .unwrap_or_default(),
            };
            let name = pod.labels().get(OF)?;
            let namespace = pod.namespace()?;
            (old != sentence).then(|| ObjectRef::new(name).within(&namespace))
        });
        std::future::ready(trigger)
    })
}
