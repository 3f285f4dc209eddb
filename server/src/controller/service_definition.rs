//! One pass over one ServiceDefinition: Deployment, Service, status; the first error ends it.

use super::{
    OF, as_refusal,
    dormant::Right,
    not_taken_up,
    passes::{Pass, Shared, Words, lock, paused, version},
    plan::{Owned, Plan, plan},
    readiness::rollout,
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
        core::v1::{Pod, PodSpec, Service},
    },
};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        controller::Action,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::OnceCell, time::Instant};
use tracing::Span;

/// What it needs in the apps namespace. Pods are read where they may be, for better sentences.
pub(super) const RIGHTS: &[Right] = &[
    ("polychrome.dev", "servicedefinitions", &["list", "watch"]),
    ("polychrome.dev", "servicedefinitions/status", &["patch"]),
    ("apps", "deployments", &["list", "watch", "create", "patch"]),
    ("", "services", &["list", "watch", "create", "patch"]),
];

/// What the watches show of what is made.
pub(super) struct Stores {
    pub(super) deployments: Store<Deployment>,
    pub(super) services: Store<Service>,
    pub(super) pods: Store<Pod>,
}

impl Stores {
    async fn begin(&self) {
        let all = async {
            _ = self.deployments.wait_until_ready().await;
            _ = self.pods.wait_until_ready().await;
        };
        _ = tokio::time::timeout(BEGIN, all).await;
    }
}

/// What somebody else changed is put back so often within [`CALM`]; then a pause, for it may be another controller.
const PUT_BACKS: u32 = 3;
const CALM: Duration = Duration::from_secs(10);
/// The stores are waited for so long at the start: without what is there nothing tells whether another wrote it, and a failure would
/// be called a start. Pods need not be readable.
const BEGIN: Duration = Duration::from_secs(5);

/// An apply, and what it came to.
#[derive(Clone, Debug, PartialEq)]
struct Applied {
    at: Instant,
    /// The generation it was made from.
    of: Option<i64>,
    /// What was put back of late: how often, since when.
    put_back: (u32, Instant),
    owned: Owned,
    /// As they came back.
    deployment: Arc<Deployment>,
    service: Arc<Service>,
}

/// What passes share.
pub(super) struct Definitions {
    shared: Shared<ServiceDefinition>,
    stores: Stores,
    /// What was last applied, by name.
    applied: Mutex<HashMap<String, Applied>>,
    /// Resource versions that an apply returned: their echo in the watch tells nothing new.
    returned: Arc<Mutex<HashMap<String, String>>>,
    /// Whether the stores were waited for.
    begun: OnceCell<()>,
}

impl Definitions {
    pub(super) fn new(shared: Shared<ServiceDefinition>, stores: Stores) -> Self {
        Self {
            shared,
            stores,
            applied: Mutex::default(),
            returned: Arc::default(),
            begun: OnceCell::new(),
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
            // Errors have been told, and must not hold up the other watches.
            std::future::ready(!echo && object.is_ok())
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
        let api: Api<K> = Api::namespaced(self.shared.client.clone(), &self.shared.namespace);
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
        let deployment = match self.standing(of, owned).filter(|_| !dry_run) {
            Some(deployment) => deployment,
            None => {
                let put_back = match self.touched(of, owned) {
                    true if !dry_run => self.may_put_back(of).await?,
                    _ => (0, Instant::now()),
                };
                let deployment: Deployment = self.apply(&owned.deployment, dry_run).await?;
                let service: Service = self.apply(&owned.service, dry_run).await?;
                let deployment = Arc::new(deployment);
                if !dry_run {
                    let applied = Applied {
                        at: Instant::now(),
                        of: of.metadata.generation,
                        put_back,
                        owned: owned.clone(),
                        deployment: deployment.clone(),
                        service: Arc::new(service),
                    };
                    lock(&self.applied).insert(of.name_any(), applied);
                }
                deployment
            }
        };
        let name = of.name_any();
        let mut pods = self.stores.pods.state();
        pods.retain(|p| p.labels().get(OF) == Some(&name));
        let pods = of_template(pods, &owned.deployment, &deployment);
        Ok(rollout(Some(&*deployment), &pods))
    }

    /// Whether what is there was written by another than this process's last apply, and no newer spec is the reason to write again.
    fn touched(&self, of: &ServiceDefinition, owned: &Owned) -> bool {
        let deployment = ObjectRef::from_obj(&owned.deployment);
        let there = self.stores.deployments.get(&deployment);
        let Some(last) = lock(&self.applied).get(&of.name_any()).cloned() else {
            return there.is_some();
        };
        // A relist may show what was.
        if of.metadata.generation != last.of {
            return of.metadata.generation < last.of;
        }
        let spec = |d: &Deployment| (d.uid(), d.metadata.generation);
        there.is_none_or(|there| {
            version(&*there) > version(&*last.deployment) && spec(&there) != spec(&last.deployment)
        })
    }

    /// Whether what another changed may be put back now; how often it was of late.
    async fn may_put_back(&self, of: &ServiceDefinition) -> Result<(u32, Instant), Fault> {
        self.shared.must_be_newest(of).await?;
        let now = Instant::now();
        let last = lock(&self.applied)
            .get(&of.name_any())
            .map(|a| a.put_back)
            .filter(|(_, since)| since.elapsed() < CALM);
        match last {
            Some((PUT_BACKS.., _)) => Err(Fault::Outage {
                what: "somebody else to leave its Deployment alone".into(),
                error: format!("it was changed again each of {PUT_BACKS} times it was put back"),
            }),
            Some((times, since)) => Ok((times + 1, since)),
            None => Ok((1, now)),
        }
    }

    /// The newest known Deployment, where the very same was applied a moment ago and nobody has touched what is ours since: a rollout's
    /// many steps need no apply each. Never older than what that apply returned.
    fn standing(&self, of: &ServiceDefinition, owned: &Owned) -> Option<Arc<Deployment>> {
        let last = lock(&self.applied).get(&of.name_any()).cloned()?;
        if last.at.elapsed() >= self.shared.pace.pending || last.owned != *owned {
            return None;
        }
        let stores = &self.stores;
        let deployment = stores
            .deployments
            .get(&ObjectRef::from_obj(&owned.deployment))?;
        let service = stores.services.get(&ObjectRef::from_obj(&owned.service))?;
        if version(&*service) > version(&*last.service) {
            return None;
        }
        if version(&*deployment) <= version(&*last.deployment) {
            return Some(last.deployment);
        }
        let spec = |d: &Deployment| (d.uid(), d.metadata.generation);
        let has_labels = |d: &Deployment| {
            let mut ours = owned.deployment.labels().iter();
            ours.all(|(k, v)| d.labels().get(k) == Some(v))
        };
        let is_ours = |d: &Deployment| {
            let mut owners = d.owner_references().iter();
            owners.any(|o| Some(&o.uid) == of.metadata.uid.as_ref())
        };
        let as_applied = spec(&deployment) == spec(&last.deployment)
            && has_labels(&deployment)
            && is_ours(&deployment);
        as_applied.then_some(deployment)
    }

    /// How many pods are available of what runs, whatever spec it is of.
    fn available(&self, of: &ServiceDefinition) -> i32 {
        let key = ObjectRef::new(&of.name_any()).within(&self.shared.namespace);
        let there = self.stores.deployments.get(&key);
        there
            .and_then(|d| d.status.as_ref()?.available_replicas)
            .unwrap_or(0)
    }

    /// Writes the status if something of it differs.
    async fn write(
        &self,
        of: &ServiceDefinition,
        new: ServiceDefinitionStatus,
    ) -> Result<(), Fault> {
        if !differs(of.status.as_ref(), &new) {
            return Ok(());
        }
        let (ready, available, phase) = (new.ready, new.available_replicas, new.phase.clone());
        let message = new.message.clone();
        self.shared.write_status(of, new, message.as_ref()).await?;
        metrics::counter!("svcforge_controller_status_writes_total").increment(1);
        tracing::info!(event = "definition.status", ready, available, phase = %phase);
        Ok(())
    }
}

impl Pass for Definitions {
    type Of = ServiceDefinition;
    const WORDS: Words = Words {
        resource: "servicedefinitions",
        quarantined: "definition.quarantined",
        failed: "definition.failed",
    };

    fn shared(&self) -> &Shared<ServiceDefinition> {
        &self.shared
    }

    fn span(name: &str) -> Span {
        tracing::info_span!("pass", servicedefinition = name)
    }

    fn forget(&self, name: &str) {
        lock(&self.applied).remove(name);
        let mut returned = lock(&self.returned);
        for kind in [Deployment::kind(&()), Service::kind(&())] {
            returned.remove(&format!("{kind}/{name}"));
        }
    }

    async fn pass(&self, of: &ServiceDefinition) -> Result<Action, Fault> {
        self.begun.get_or_init(|| self.stores.begin()).await;
        let of = &self.shared.as_written(of);
        let owned = match plan(of) {
            Plan::Noop => return Ok(Action::await_change()),
            Plan::Refuse(faults) => {
                let seen = Seen::Refused(faults, self.available(of));
                self.write(of, status(of, &seen, crate::clock::now()))
                    .await?;
                return Ok(self.shared.look_again(false));
            }
            Plan::Apply(owned) => owned,
        };
        let paused = paused(of);
        let served = self.serve(of, &owned, paused.is_some()).await;
        let seen = match (served.map_err(as_refusal), paused) {
            (Ok(rollout), None) => Seen::Applied(rollout),
            (Ok(rollout), Some(why)) => Seen::Paused(rollout, why),
            (Err(fault @ Fault::Rejected(_)), _) => {
                let why = crate::cluster::trouble::plain(&fault.to_string());
                let seen = Seen::Rejected(why, self.available(of));
                self.write(of, status(of, &seen, crate::clock::now()))
                    .await?;
                return Err(fault);
            }
            (Err(fault), _) => {
                let told = of.status.as_ref();
                let (seen, said) = told.map_or((None, None), |s| {
                    (s.observed_generation, s.message.as_deref())
                });
                if let Some(why) = not_taken_up(&fault, (seen, said), of.metadata.generation) {
                    let seen = Seen::Waiting(why, self.available(of));
                    // What keeps the apply from being answered may keep this from it, too.
                    _ = self.write(of, status(of, &seen, crate::clock::now())).await;
                }
                return Err(fault);
            }
        };
        let new = status(of, &seen, crate::clock::now());
        let ready = new.ready;
        self.write(of, new).await?;
        Ok(self.shared.look_again(ready))
    }
}

/// The pods of the template as it is now: what is wrong with the old one says nothing of the new. An admission may have added to a pod,
/// or taken its image from elsewhere; where none is as the template says, they are those of the youngest pod's hash, once the Deployment
/// says that it has made some.
fn of_template(pods: Vec<Arc<Pod>>, owned: &Deployment, seen: &Deployment) -> Vec<Arc<Pod>> {
    let app = |spec: &PodSpec| {
        let container = spec.containers.first()?;
        let env = container.env.iter().flatten();
        let env: BTreeMap<String, String> = env
            .map(|e| (e.name.clone(), e.value.clone().unwrap_or_default()))
            .collect();
        Some((container.image.clone(), env))
    };
    let wanted = owned
        .spec
        .as_ref()
        .and_then(|s| s.template.spec.as_ref())
        .and_then(app);
    let as_asked = |pod: &Arc<Pod>| pod.spec.as_ref().and_then(app) == wanted;
    let (exact, others): (Vec<_>, Vec<_>) = pods.into_iter().partition(as_asked);
    let status = seen.status.clone().unwrap_or_default();
    let made = status.observed_generation >= seen.metadata.generation
        && status.updated_replicas.unwrap_or(0) > 0;
    if !exact.is_empty() || !made {
        return exact;
    }
    let hash = |p: &Arc<Pod>| p.labels().get("pod-template-hash").cloned();
    let born = |p: &&Arc<Pod>| p.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let youngest = others.iter().max_by_key(born).and_then(hash);
    let mut others = others;
    others.retain(|p| youngest.is_some() && hash(p) == youngest);
    others
}

fn echo_key<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!("{}/{}", K::kind(&()), object.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(updated: i32, observed: i64) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"generation": 2},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "app", "image": "new", "env": [{"name": "A", "value": "1"}]}]}}},
            "status": {"observedGeneration": observed, "updatedReplicas": updated},
        }))
        .unwrap()
    }

    fn pod(name: &str, image: &str, hash: &str, born: &str) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": name, "labels": {"pod-template-hash": hash}, "creationTimestamp": born},
            "spec": {"containers": [{"name": "app", "image": image, "env": [{"name": "A", "value": "1"}]}]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn names(pods: Vec<Arc<Pod>>, seen: &Deployment) -> Vec<String> {
        let found = of_template(pods, &deployment(0, 0), seen);
        found.iter().map(|p| p.name_any()).collect()
    }

    /// An old template's pod says nothing of the new one, and one that an admission has changed still speaks for it.
    #[test]
    fn pods_speak_for_the_template_as_it_is_now() {
        let old = pod("old", "old", "a", "2026-01-01T00:00:00Z");
        let new = pod("new", "new", "b", "2026-01-01T00:01:00Z");
        let mirrored = pod("mirrored", "mirror/new", "b", "2026-01-01T00:01:00Z");
        let made = deployment(1, 2);
        assert_eq!(names(vec![old.clone(), new], &made), ["new"]);
        assert_eq!(
            names(vec![mirrored.clone(), old.clone()], &made),
            ["mirrored"]
        );
        // None of the new has been made yet, as far as the Deployment knows: what is there is the old one's.
        for early in [deployment(0, 2), deployment(1, 1)] {
            assert!(names(vec![old.clone(), mirrored.clone()], &early).is_empty());
        }
        assert!(names(vec![], &made).is_empty());
    }
}
