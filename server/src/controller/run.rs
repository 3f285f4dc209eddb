//! The two controllers, joined to their watches. Each sleeps until its own kind can be served.

use super::{
    OF, dormant,
    passes::{self, Key, Shared},
    service_definition::{self, Definitions, Stores},
    workflow::{self, Workflows},
};
use crate::cluster::{Clients, ServiceDefinition, Workflow, trouble::trouble};
use futures::{FutureExt, Stream, StreamExt};
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
        reflector::{self, Lookup, ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// So many pods' troubles are remembered.
const MOST_TROUBLED: usize = 10_000;

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

    /// Has the object of that name looked at.
    fn waker<K>(
        &self,
        wake: &mpsc::UnboundedSender<Key<K>>,
    ) -> impl Fn(&str) + Send + Clone + use<K>
    where
        K: Resource<DynamicType = ()> + Send + 'static,
    {
        let (wake, namespace) = (wake.clone(), self.namespace.clone());
        move |name| drop(wake.send(ObjectRef::new(name).within(&namespace)))
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
        let (pods, pods_writer) = reflector::store();
        let labelled = all().labels(OF);
        let (wake, woken) = mpsc::unbounded_channel();
        let lost = self.waker(&wake);
        let pod_changes = troubled(
            watch(self.api::<Pod>(), labelled.clone())
                .reflect(pods_writer)
                .touched_objects(),
        );
        let (deployments, deployments_writer) = reflector::store();
        let (services, services_writer) = reflector::store();
        let stores = Stores {
            deployments,
            services,
            pods,
        };
        let shared = Shared::new(client.clone(), &self.namespace, *pace, wake);
        let cx = Arc::new(Definitions::new(shared, stores));
        let config = controller::Config::default()
            .concurrency(pace.concurrency)
            .debounce(pace.debounce);
        let deployments = watch(self.api::<Deployment>(), labelled.clone());
        let deployments = cx.without_echoes(
            missing(deployments, OF, lost.clone())
                .reflect(deployments_writer)
                .touched_objects(),
        );
        let services = watch(self.api::<Service>(), labelled);
        let services = cx.without_echoes(
            missing(services, OF, lost)
                .reflect(services_writer)
                .touched_objects(),
        );
        let forget = cx.clone();
        let objects = watch(self.api::<Guarded<ServiceDefinition>>(), all()).reflect(writer);
        let objects = chosen(objects, move |name| passes::forget(&*forget, name));
        let (began, lost) = (store.clone(), cx.clone());
        let done = kube::runtime::Controller::for_stream(objects, store)
            .with_config(config)
            .watches_stream(deployments, owner_by::<Deployment, _>(OF))
            .watches_stream(services, owner_by::<Service, _>(OF))
            .reconcile_on(pod_changes)
            .reconcile_on(tokio_stream::wrappers::UnboundedReceiverStream::new(woken))
            .graceful_shutdown_on(stop.clone().cancelled_owned())
            .run(passes::pass, passes::failed, cx);
        drive(done, &began, stop, |name| passes::forget(&*lost, name)).await;
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
        let (wake, woken) = mpsc::unbounded_channel();
        let lost = self.waker(&wake);
        let stages = watch(
            self.api::<Guarded<ServiceDefinition>>(),
            all().labels(super::OF_WORKFLOW),
        );
        let stages = missing(stages, super::OF_WORKFLOW, lost)
            .touched_objects()
            .filter(|stage| std::future::ready(stage.is_ok()));
        let shared = Shared::new(client.clone(), &self.namespace, *pace, wake);
        let cx = Arc::new(Workflows::new(shared));
        let config = controller::Config::default()
            .concurrency(pace.concurrency)
            .debounce(pace.debounce);
        let forget = cx.clone();
        let objects = watch(self.api::<Guarded<Workflow>>(), all()).reflect(writer);
        let objects = chosen(objects, move |name| passes::forget(&*forget, name));
        let (began, lost) = (store.clone(), cx.clone());
        let done = kube::runtime::Controller::for_stream(objects, store)
            .with_config(config)
            .watches_stream(
                stages,
                owner_by::<Guarded<ServiceDefinition>, _>(super::OF_WORKFLOW),
            )
            .reconcile_on(tokio_stream::wrappers::UnboundedReceiverStream::new(woken))
            .graceful_shutdown_on(stop.clone().cancelled_owned())
            .run(passes::pass, passes::failed, cx);
        drive(done, &began, stop, |name| passes::forget(&*lost, name)).await;
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

/// What a relist does not show any more was deleted while nobody watched: `lost` is told whose it was, by that label.
fn missing<K: Resource>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
    owner: &'static str,
    lost: impl Fn(&str) + Send,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send {
    let mut known = HashMap::<String, String>::new();
    let mut listed = HashMap::new();
    events.inspect(move |event| match event {
        Ok(watcher::Event::Init) => listed.clear(),
        Ok(watcher::Event::InitApply(object)) => {
            listed.extend(owned_by(object, owner));
        }
        Ok(watcher::Event::InitDone) => {
            let before = std::mem::replace(&mut known, std::mem::take(&mut listed));
            for (_, of) in before.iter().filter(|(name, _)| !known.contains_key(*name)) {
                lost(of);
            }
        }
        Ok(watcher::Event::Apply(object)) => known.extend(owned_by(object, owner)),
        Ok(watcher::Event::Delete(object)) => _ = known.remove(&object.name_any()),
        Err(_) => {}
    })
}

fn owned_by<K: Resource>(object: &K, owner: &str) -> Option<(String, String)> {
    Some((object.name_any(), object.labels().get(owner)?.clone()))
}

/// Whose an object is, by its owner reference and by that label: somebody may have taken away, or changed, either.
fn owner_by<C, K>(label: &'static str) -> impl Fn(C) -> Vec<ObjectRef<K>> + Sync
where
    C: Resource,
    K: Resource<DynamicType = ()>,
{
    move |child| {
        let owners = child.owner_references().iter();
        let owners = owners.filter(|o| o.kind == K::kind(&())).map(|o| &o.name);
        let names: BTreeSet<&String> = owners.chain(child.labels().get(label)).collect();
        let within = child.meta().namespace.as_deref().unwrap_or_default();
        names
            .into_iter()
            .map(|name| ObjectRef::new(name).within(within))
            .collect()
    }
}

/// Runs the passes until they have ended; at a stop before the first list was complete there are none to wait for, and the stream
/// would never end.
/// `gone` is told of objects that something still woke.
async fn drive<K, T, E: 'static, Q: 'static>(
    passes: impl Stream<Item = Result<T, controller::Error<E, Q>>>,
    began: &Store<K>,
    stop: &CancellationToken,
    gone: impl Fn(&str),
) where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let never_began = async {
        stop.cancelled().await;
        if began.wait_until_ready().now_or_never().is_some() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = passes.for_each(|done| {
            if let Err(controller::Error::ObjectNotFound(of)) = done {
                gone(&of.name);
            }
            std::future::ready(())
        }) => {}
        () = never_began => {}
    }
}

/// Of the objects of a kind only what an author changes wakes it, not the statuses that we write ourselves. A relist wakes when it is
/// complete: before, the store still shows what was. Errors have been told, and must not hold up the other watches. `gone` is told the
/// names of those that are.
fn chosen<K>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
    gone: impl Fn(&str) + Send,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send
where
    K: Resource + Send,
{
    let mut known = HashMap::<String, u64>::new();
    let (mut listed, mut waking) = (HashMap::new(), vec![]);
    let woken = events.map(move |event| match event {
        Err(_) => vec![],
        Ok(watcher::Event::Init) => {
            listed = HashMap::new();
            waking = vec![];
            vec![]
        }
        Ok(watcher::Event::InitApply(object)) => {
            let (name, hash) = (object.name_any(), chosen_hash(&object));
            if known.get(&name) != Some(&hash) {
                waking.push(object);
            }
            listed.insert(name, hash);
            vec![]
        }
        Ok(watcher::Event::InitDone) => {
            let before = std::mem::replace(&mut known, std::mem::take(&mut listed));
            for name in before.keys().filter(|n| !known.contains_key(*n)) {
                gone(name);
            }
            std::mem::take(&mut waking)
        }
        Ok(watcher::Event::Apply(object)) => {
            let hash = chosen_hash(&object);
            match known.insert(object.name_any(), hash) == Some(hash) {
                true => vec![],
                false => vec![object],
            }
        }
        Ok(watcher::Event::Delete(object)) => {
            known.remove(&object.name_any());
            gone(&object.name_any());
            vec![]
        }
    });
    woken.flat_map(|woken| futures::stream::iter(woken.into_iter().map(Ok)))
}

/// What an author changes of an object.
fn chosen_hash<K: Resource>(object: &K) -> u64 {
    let meta = object.meta();
    let owners = meta.owner_references.as_ref().map(|o| format!("{o:?}"));
    let mut hash = DefaultHasher::new();
    (&meta.uid, meta.generation, &meta.annotations).hash(&mut hash);
    (&meta.labels, meta.deletion_timestamp.is_some(), owners).hash(&mut hash);
    hash.finish()
}

/// Definitions whose pods' trouble has changed.
fn troubled(
    pods: impl Stream<Item = Result<Pod, watcher::Error>> + Send,
) -> impl Stream<Item = ObjectRef<Guarded<ServiceDefinition>>> + Send {
    let mut known = HashMap::<String, String>::new();
    pods.filter_map(move |pod| {
        // Those that vanish while nobody watches are never told: without them, at the price of a look too many.
        if known.len() > MOST_TROUBLED {
            known.clear();
        }
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
            let namespace = ResourceExt::namespace(&pod)?;
            (old != sentence).then(|| ObjectRef::new(name).within(&namespace))
        });
        std::future::ready(trigger)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Mutex;
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    fn definition(name: &str, generation: i64) -> ServiceDefinition {
        serde_json::from_value(json!({"metadata": {"name": name, "uid": name, "generation": generation}, "spec": {"image": "x"}}))
            .expect("a definition")
    }

    #[tokio::test]
    async fn what_a_relist_does_not_show_any_more_wakes_its_owner() {
        let labelled = |name: &str, of: &str| {
            let mut one = definition(name, 1);
            one.metadata.labels = Some([("of".to_owned(), of.to_owned())].into());
            one
        };
        let lost = Mutex::new(vec![]);
        let events = [
            Init,
            InitApply(labelled("a", "x")),
            InitApply(labelled("b", "x")),
            InitDone,
            Apply(labelled("c", "y")),
            Apply(labelled("d", "z")),
            Delete(labelled("d", "z")),
            // Cut half way, and listed again: `a` and `c` are gone, `d` was known to be.
            Init,
            Init,
            InitApply(labelled("b", "x")),
            InitDone,
        ];
        let told = |of: &str| lost.lock().expect("unpoisoned").push(of.to_owned());
        let events = futures::stream::iter(events.map(Ok));
        assert_eq!(missing(events, "of", told).count().await, 11);
        let mut lost = lost.into_inner().expect("unpoisoned");
        lost.sort();
        assert_eq!(lost, ["x", "y"]);
    }

    #[tokio::test]
    async fn a_relist_wakes_when_it_is_complete_and_only_what_changed() {
        let gone = Arc::new(Mutex::new(vec![]));
        let told = gone.clone();
        let (tx, rx) = mpsc::unbounded_channel();
        let events = tokio_stream::wrappers::UnboundedReceiverStream::new(rx);
        let mut woken = std::pin::pin!(chosen(events, move |name| told
            .lock()
            .expect("unpoisoned")
            .push(name.to_owned())));
        let mut after = |events: Vec<watcher::Event<ServiceDefinition>>| {
            for event in events {
                tx.send(Ok(event)).expect("open");
            }
            let mut names = vec![];
            while let Some(Some(Ok(object))) = woken.next().now_or_never() {
                names.push(object.name_any());
            }
            names
        };
        let listed = |generation| {
            vec![
                Init,
                InitApply(definition("a", 1)),
                InitApply(definition("b", generation)),
            ]
        };
        assert!(
            after(listed(1)).is_empty(),
            "not before the store shows them"
        );
        assert_eq!(after(vec![InitDone]), ["a", "b"]);
        assert!(
            after(vec![Apply(definition("a", 1))]).is_empty(),
            "a status"
        );
        assert_eq!(after(vec![Apply(definition("a", 2))]), ["a"]);
        // Cut half way, and listed again.
        assert!(after(listed(2)).is_empty());
        assert!(after(listed(2)).is_empty());
        assert_eq!(
            after(vec![InitDone]),
            ["a", "b"],
            "both are other than they were"
        );
        assert_eq!(
            after(vec![Init, InitApply(definition("b", 2)), InitDone]),
            [""; 0]
        );
        assert!(after(vec![Delete(definition("b", 2))]).is_empty());
        assert_eq!(*gone.lock().expect("unpoisoned"), ["a", "b"]);
        assert_eq!(after(vec![Apply(definition("b", 2))]), ["b"], "made anew");
    }
}
