//! Every release of a cluster at once, as metadata only: what drift compares with. Labels of Helm's Secrets in every status, paged to
//! the end; and the definitions that are ours.

use super::{
    Clients, INSTALLATION, INSTANCE, MANAGER, ServiceDefinition,
    records::{self, PAGE, Record},
    release,
};
use crate::{db::observed::ObjectRef, provision::Fault};
use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectMeta, PartialObjectMeta, Patch, PatchParams},
    runtime::{
        WatchStreamExt,
        reflector::{self, Store},
        watcher,
    },
};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use svcforge_app::domain::EntryKind;
use tokio::{sync::mpsc, task::JoinSet};

/// What Helm labels its records with.
const HELM: &str = "owner=helm";
/// Label of the Secret that proves a listing.
const MARKER: &str = "svcforge.dev/marker";

/// A release (or a definition) as its newest record's metadata shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Release or definition.
    pub kind: EntryKind,
    /// Its highest revision; a definition's generation.
    pub revision: i32,
    /// A definition's.
    pub uid: Option<String>,
    /// Helm's word; of a definition `deployed`, or `uninstalling` once somebody has deleted it.
    pub status: String,
    /// The installation it is labelled with.
    pub installation: Option<String>,
    /// The instance it is labelled with.
    pub instance: Option<String>,
    /// When Helm last wrote the record, seconds since the epoch.
    pub modified_at: Option<i64>,
}

/// Where and how it is called.
pub type Place = (String, String);

/// What a cluster shows.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// By namespace and name.
    pub releases: HashMap<Place, Seen>,
    /// Records that could not be read, and why: what they belong to is unknown.
    pub unreadable: BTreeMap<Place, String>,
    /// Namespaces that could not be listed, and why; under `""` all of them.
    pub unknown: BTreeMap<String, String>,
    /// Why definitions could not be listed.
    pub unknown_definitions: Option<String>,
    /// Namespaces that svcforge made.
    pub managed: BTreeSet<String>,
}

/// Reads a cluster's releases. Never writes.
#[async_trait]
pub trait Releases: Send + Sync + 'static {
    /// All of them. Where only some namespaces may be listed, those of `namespaces`.
    ///
    /// # Errors
    /// When the listing failed as a whole, or cannot be proven to be whole.
    async fn list(&self, namespaces: &[String]) -> Result<Listing, Fault>;

    /// One of them, by a consistent read.
    ///
    /// # Errors
    /// When it could not be asked.
    async fn find(
        &self,
        kind: EntryKind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Seen>, Fault>;

    /// The uid of one object, if it is there.
    ///
    /// # Errors
    /// When it could not be asked.
    async fn find_uid(&self, object: &ObjectRef) -> Result<Option<String>, Fault>;
}

/// The releases of one cluster, for one installation.
#[derive(Clone)]
pub struct ClusterReleases {
    /// The cluster.
    pub clients: Clients,
    /// Whose marker proves a listing.
    pub installation: String,
    /// Where the marker is.
    pub namespace: String,
    /// Where definitions live.
    pub apps_namespace: String,
}

fn marker_name(installation: &str) -> String {
    format!(
        "svcforge-marker-{}",
        &installation[..installation.len().min(8)]
    )
}

fn seen(labels: &BTreeMap<String, String>, revision: i32, status: &str) -> Seen {
    Seen {
        kind: EntryKind::Helm,
        revision,
        uid: None,
        status: status.to_owned(),
        installation: labels.get(INSTALLATION).cloned(),
        instance: labels.get(INSTANCE).cloned(),
        modified_at: labels.get("modifiedAt").and_then(|t| t.parse().ok()),
    }
}

impl Listing {
    /// Adds one record's metadata; the highest revision of a release counts. True when it is the marker of that installation.
    fn add(
        &mut self,
        (namespace, secret): (&str, &str),
        labels: &BTreeMap<String, String>,
        installation: &str,
    ) -> bool {
        if let Some(of) = labels.get(MARKER) {
            return of == installation;
        }
        let namespace = namespace.to_owned();
        let name = labels.get("name").cloned();
        let revision = labels
            .get("version")
            .and_then(|v| v.parse::<i32>().ok())
            .filter(|v| *v > 0);
        match (name, revision, labels.get("status")) {
            (Some(name), Some(revision), Some(status)) => {
                let place = (namespace, name);
                let newer = self
                    .releases
                    .get(&place)
                    .is_none_or(|old| old.revision < revision);
                if newer {
                    self.releases.insert(place, seen(labels, revision, status));
                }
            }
            (name, ..) => {
                // Helm's own name of the record still tells whose it is.
                let name = name.unwrap_or_else(|| release_of(secret).to_owned());
                let why = format!("its record {secret} has no readable version or status label");
                self.unreadable.insert((namespace, name), why);
            }
        }
        false
    }
}

/// `sh.helm.release.v1.<name>.v<revision>` → name.
fn release_of(secret: &str) -> &str {
    let rest = secret.strip_prefix("sh.helm.release.v1.").unwrap_or(secret);
    rest.rsplit_once(".v").map_or(rest, |(name, _)| name)
}

impl ClusterReleases {
    /// Makes the Secret that proves a listing: it carries the label that is listed by, and none of a release.
    ///
    /// # Errors
    /// From the API.
    pub async fn ensure_marker(&self) -> Result<(), Fault> {
        super::ensure_namespace(
            &self.clients,
            &self.installation,
            "svcforge",
            &self.namespace,
        )
        .await?;
        let name = marker_name(&self.installation);
        let api: Api<Secret> = Api::namespaced(self.clients.request.clone(), &self.namespace);
        let object = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "labels": {"owner": "helm", MARKER: self.installation, INSTALLATION: self.installation}},
        });
        api.patch(
            &name,
            &PatchParams::apply(MANAGER).force(),
            &Patch::Apply(&object),
        )
        .await?;
        Ok(())
    }

    async fn everywhere(&self) -> Result<Listing, kube::Error> {
        let mut again = false;
        loop {
            let (mut listing, mut proven) = (Listing::default(), false);
            let mut add = |r: Record| {
                proven |= listing.add((&r.namespace, &r.name), &r.labels, &self.installation);
            };
            match records::each(&self.clients.request, None, HELM, &mut add).await {
                Ok(()) if proven => return Ok(listing),
                Ok(()) => {
                    let why =
                        "the listing is not proven to be whole: svcforge's own marker is not in it";
                    listing.unknown.insert(String::new(), why.into());
                    return Ok(listing);
                }
                Err(kube::Error::Api(status)) if status.code == 410 && !again => again = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Where the whole cluster may not be listed: each namespace for itself.
    async fn by_namespace(&self, namespaces: &[String]) -> Listing {
        let mut listing = Listing::default();
        let listed = futures::stream::iter(namespaces.iter().cloned())
            .map(|namespace| async move {
                let mut found = vec![];
                let mut add = |record| found.push(record);
                let listed =
                    records::each(&self.clients.request, Some(&namespace), HELM, &mut add).await;
                (namespace, listed.map(|()| found))
            })
            .buffer_unordered(8)
            .collect::<Vec<_>>()
            .await;
        for (namespace, found) in listed {
            match found {
                Ok(found) => found.iter().for_each(|r| {
                    listing.add((&r.namespace, &r.name), &r.labels, &self.installation);
                }),
                Err(error) => {
                    listing.unknown.insert(namespace, error.to_string());
                }
            }
        }
        listing
    }

    async fn add_managed(&self, listing: &mut Listing) -> Result<(), kube::Error> {
        let api: Api<Namespace> = Api::all(self.clients.request.clone());
        let params = ListParams::default().labels(&format!("{INSTALLATION}={}", self.installation));
        for item in api.list_metadata(&params).await?.items {
            listing.managed.insert(item.name_any());
        }
        Ok(())
    }

    async fn add_definitions(&self, listing: &mut Listing) {
        let api: Api<ServiceDefinition> =
            Api::namespaced(self.clients.request.clone(), &self.apps_namespace);
        let mut params = ListParams::default().labels(INSTALLATION).limit(PAGE);
        loop {
            match api.list_metadata(&params).await {
                Ok(page) => {
                    for item in page.items {
                        let place = (self.apps_namespace.clone(), item.name_any());
                        listing.releases.insert(place, definition(&item.metadata));
                    }
                    match page.metadata.continue_.filter(|c| !c.is_empty()) {
                        Some(next) => params = params.continue_token(&next),
                        None => return,
                    }
                }
                Err(error) => {
                    listing.unknown_definitions = Some(error.to_string());
                    return;
                }
            }
        }
    }

    /// Tells of definitions of ours that come, go or are edited; not of their statuses.
    async fn watch_definitions(self, tell: mpsc::Sender<()>) {
        let api: Api<PartialObjectMeta<ServiceDefinition>> =
            Api::namespaced(self.clients.watch.clone(), &self.apps_namespace);
        let ours = watcher::Config::default()
            .labels(INSTALLATION)
            .streaming_lists();
        let mut known = HashMap::new();
        let mut events = std::pin::pin!(watcher(api, ours).default_backoff());
        while let Some(event) = events.next().await {
            let news = match event {
                Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object)) => {
                    let one = (object.uid(), object.metadata.generation);
                    known.insert(object.name_any(), one.clone()) != Some(one)
                }
                Ok(watcher::Event::Delete(object)) => {
                    known.remove(&object.name_any());
                    true
                }
                // Something may have gone while nobody watched.
                Ok(watcher::Event::InitDone) => true,
                Ok(watcher::Event::Init) => false,
                Err(error) => {
                    tracing::debug!(event = "watch.retried", kind = "definitions", %error);
                    false
                }
            };
            if news {
                let _ = tell.try_send(());
            }
        }
    }

    /// Watches releases: a set of stores that is always fresh, and a channel that tells that something changed.
    pub fn watch(&self) -> (Watched, mpsc::Receiver<()>) {
        let (tx, rx) = mpsc::channel(1);
        let (store, writer) = reflector::store();
        let api: Api<PartialObjectMeta<Secret>> = Api::all(self.clients.watch.clone());
        let stream = watcher(
            api,
            watcher::Config::default().labels(HELM).streaming_lists(),
        )
        .default_backoff()
        .modify(|object: &mut PartialObjectMeta<Secret>| {
            object.metadata.managed_fields = None;
            object.metadata.annotations = None;
        })
        .reflect(writer);
        let mut watches = JoinSet::new();
        watches.spawn(self.clone().watch_definitions(tx.clone()));
        watches.spawn(async move {
            let mut stream = std::pin::pin!(stream);
            while let Some(event) = stream.next().await {
                match event {
                    // Full means that a look is due already.
                    Ok(
                        watcher::Event::Apply(_)
                        | watcher::Event::Delete(_)
                        | watcher::Event::InitDone,
                    ) => {
                        let _ = tx.try_send(());
                    }
                    Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
                    Err(error) => {
                        tracing::debug!(event = "watch.retried", kind = "releases", %error)
                    }
                }
            }
        });
        (
            Watched {
                store,
                of: self.clone(),
                _watches: watches,
            },
            rx,
        )
    }
}

fn definition(meta: &ObjectMeta) -> Seen {
    let none = BTreeMap::new();
    let labels = meta.labels.as_ref().unwrap_or(&none);
    Seen {
        kind: EntryKind::ServiceDefinition,
        revision: i32::try_from(meta.generation.unwrap_or(0)).unwrap_or(i32::MAX),
        uid: meta.uid.clone(),
        // In the foreground its removal takes as long as its pods do, and counts as another generation.
        status: match meta.deletion_timestamp {
            Some(_) => "uninstalling".into(),
            None => "deployed".into(),
        },
        installation: labels.get(INSTALLATION).cloned(),
        instance: labels.get(INSTANCE).cloned(),
        modified_at: None,
    }
}

#[async_trait]
impl Releases for ClusterReleases {
    async fn list(&self, namespaces: &[String]) -> Result<Listing, Fault> {
        let mut listing = match self.everywhere().await {
            Ok(listing) => match listing.unknown.get("") {
                Some(why) => return Err(Fault::Failed(why.clone())),
                None => listing,
            },
            Err(kube::Error::Api(status)) if status.code == 403 => {
                self.by_namespace(namespaces).await
            }
            Err(error) => return Err(error.into()),
        };
        if let Err(error) = self.add_managed(&mut listing).await {
            tracing::debug!(event = "drift.namespaces_unknown", %error);
            listing.managed.extend(namespaces.iter().cloned());
        }
        self.add_definitions(&mut listing).await;
        Ok(listing)
    }

    async fn find(
        &self,
        kind: EntryKind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Seen>, Fault> {
        match kind {
            EntryKind::Helm => Ok(release::head(&self.clients, namespace, name)
                .await?
                .map(|head| seen(&head.labels, head.revision, &head.status))),
            EntryKind::ServiceDefinition => {
                let api: Api<ServiceDefinition> =
                    Api::namespaced(self.clients.request.clone(), namespace);
                Ok(api
                    .get_metadata_opt(name)
                    .await?
                    .map(|o| definition(&o.metadata)))
            }
        }
    }

    async fn find_uid(&self, object: &ObjectRef) -> Result<Option<String>, Fault> {
        super::find_uid(&self.clients, object).await
    }
}

/// Releases as the watch shows them; single reads go to the API.
pub struct Watched {
    store: Store<PartialObjectMeta<Secret>>,
    of: ClusterReleases,
    // Ends the watch when this is dropped.
    _watches: JoinSet<()>,
}

impl Watched {
    /// What the store holds.
    pub fn listing(&self) -> Listing {
        let (mut listing, none) = (Listing::default(), BTreeMap::new());
        let mut proven = false;
        for object in self.store.state() {
            let meta = &object.metadata;
            let place = (
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            );
            let labels = meta.labels.as_ref().unwrap_or(&none);
            proven |= listing.add(place, labels, &self.of.installation);
        }
        if !proven {
            listing.unknown.insert(
                String::new(),
                "the watch has not shown svcforge's own marker".into(),
            );
        }
        listing
    }
}

#[async_trait]
impl Releases for Watched {
    async fn list(&self, _namespaces: &[String]) -> Result<Listing, Fault> {
        let mut listing = self.listing();
        if let Some(why) = listing.unknown.get("") {
            return Err(Fault::Failed(why.clone()));
        }
        self.of.add_managed(&mut listing).await?;
        self.of.add_definitions(&mut listing).await;
        Ok(listing)
    }

    async fn find(
        &self,
        kind: EntryKind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Seen>, Fault> {
        self.of.find(kind, namespace, name).await
    }

    async fn find_uid(&self, object: &ObjectRef) -> Result<Option<String>, Fault> {
        self.of.find_uid(object).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(listing: &mut Listing, secret: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        listing.add(("ns", secret), &labels, "i")
    }

    #[test]
    fn the_highest_revision_counts_and_a_malformed_label_is_named() {
        let mut listing = Listing::default();
        for (version, status) in [
            ("2", "deployed"),
            ("10", "pending-upgrade"),
            ("9", "superseded"),
        ] {
            let labels = [("name", "db"), ("version", version), ("status", status)];
            assert!(!add(&mut listing, "x", &labels));
        }
        let head = &listing.releases[&("ns".to_owned(), "db".to_owned())];
        assert_eq!(
            (head.revision, head.status.as_str()),
            (10, "pending-upgrade")
        );
        for labels in [
            &[("name", "bad"), ("version", "x"), ("status", "deployed")][..],
            &[("name", "bad"), ("version", "-1")][..],
        ] {
            add(&mut listing, "sh.helm.release.v1.bad.v1", labels);
        }
        add(&mut listing, "sh.helm.release.v1.nameless.v3", &[]);
        let named: Vec<&str> = listing.unreadable.keys().map(|(_, n)| n.as_str()).collect();
        assert_eq!(named, ["bad", "nameless"]);
        assert!(add(&mut listing, "m", &[(MARKER, "i")]), "the marker");
        assert!(
            !add(&mut listing, "m", &[(MARKER, "other")]),
            "somebody else's marker"
        );
    }
}
