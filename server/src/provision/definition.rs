//! Instances of kind `service_definition`: the object is applied, its controller does the rest, and the attempt waits until it serves.

use super::{Fault, Job, kubernetes::Kubernetes};
use crate::{
    catalog::compose,
    cluster::{
        INSTALLATION, INSTANCE, MANAGER, ServiceDefinition, ServiceDefinitionSpec, readiness,
        release,
    },
    db::{self, observed::ObjectRef},
    queue::{Attempt, Stop},
};
use futures::StreamExt;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{Pod, Service},
    },
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::time::Duration;
use svcforge_app::domain::{Part, Readiness, Verdict};

/// A removed definition's pods have half a minute to end, and the API server comes round to them when it can.
const GONE_WITHIN: Duration = Duration::from_secs(90);

fn check_ours(found: &ServiceDefinition, installation: &str, job: &Job) -> Result<(), Fault> {
    let what = format!("ServiceDefinition {}", found.name_any());
    release::check_ours(
        &what,
        found.labels(),
        installation,
        &job.instance_id.to_string(),
    )
}

impl Kubernetes {
    fn definitions(&self, job: &Job) -> Api<ServiceDefinition> {
        Api::namespaced(self.clients.request.clone(), &job.work.release_namespace)
    }

    /// Applies the object, and waits until its controller says that it serves.
    pub(super) async fn install_definition(
        &self,
        job: &Job,
        attempt: &Attempt,
    ) -> Result<Vec<ObjectRef>, Fault> {
        attempt.step("Check that it is ours").await?;
        let api = self.definitions(job);
        // What stands in its place is taken over only where a person has said so.
        let adopts = attempt.task.payload["adopt"] == true;
        match api.get_opt(&job.work.release_name).await? {
            Some(found) if adopts && release::may_adopt(found.labels(), &self.installation) => {}
            Some(found) => check_ours(&found, &self.installation, job)?,
            None => {}
        }
        attempt.step("Apply the definition").await?;
        let applied = self.apply_exactly(&api, job).await?;
        // By its generation drift tells a person's edit from ours, and by its uid what somebody put in its place.
        let generation = applied.metadata.generation.unwrap_or(0);
        let revision = i32::try_from(generation).unwrap_or(i32::MAX);
        let task = &attempt.task;
        if !db::instance::record_revision(
            &attempt.pool,
            job.instance_id,
            (revision, applied.metadata.uid.as_deref()),
            task.id,
            task.token,
        )
        .await?
        {
            return Err(Fault::Stopped(Stop::LeaseLost));
        }
        attempt.log(
            "svcforge",
            &format!(
                "applied ServiceDefinition {}/{}",
                job.work.release_namespace, job.work.release_name
            ),
        );
        let parts = vec![ObjectRef {
            kind: "ServiceDefinition".into(),
            namespace: job.work.release_namespace.clone(),
            name: job.work.release_name.clone(),
        }];
        self.record_parts(job, &parts, attempt).await?;
        attempt.step("Wait until it serves").await?;
        self.wait_served(job, generation, attempt).await?;
        Ok(parts)
    }

    /// Applies the object; what others have added to its spec is taken out again.
    async fn apply_exactly(
        &self,
        api: &Api<ServiceDefinition>,
        job: &Job,
    ) -> Result<ServiceDefinition, Fault> {
        let (name, object) = (&job.work.release_name, self.object(job)?);
        let params = PatchParams::apply(MANAGER).force();
        let applied = api.patch(name, &params, &Patch::Apply(&object)).await?;
        let spec = serde_json::to_value(&applied.spec)
            .map_err(|e| Fault::Rejected(format!("the definition cannot be written: {e}")))?;
        let surplus = surplus(&object["spec"], &spec);
        if surplus.as_object().is_none_or(Map::is_empty) {
            return Ok(applied);
        }
        // It takes out and adds nothing: nobody owns more by it.
        let surplus = json!({"metadata": {"uid": applied.uid()}, "spec": surplus});
        let params = PatchParams {
            field_manager: Some(MANAGER.into()),
            ..PatchParams::default()
        };
        Ok(api.patch(name, &params, &Patch::Merge(&surplus)).await?)
    }

    fn object(&self, job: &Job) -> Result<Value, Fault> {
        let spec = Value::Object(compose(&job.entry, &job.parameters, ""));
        let mut spec: ServiceDefinitionSpec = serde_json::from_value(spec)
            .map_err(|e| Fault::Rejected(format!("the definition cannot be read: {e}")))?;
        spec.owner = Some(format!("team:{}", job.work.team));
        spec.template = Some(format!(
            "{}@{}",
            job.entry.service_type, job.entry.chart_version
        ));
        Ok(json!({
            "apiVersion": "polychrome.dev/v1alpha1",
            "kind": "ServiceDefinition",
            "metadata": {"name": job.work.release_name, "labels": {INSTALLATION: self.installation, INSTANCE: job.instance_id.to_string()}},
            "spec": spec,
        }))
    }

    /// Watches the one object until its status speaks of that generation, and says that it serves. One that somebody removes meanwhile
    /// never would.
    async fn wait_served(
        &self,
        job: &Job,
        generation: i64,
        attempt: &Attempt,
    ) -> Result<(), Fault> {
        let api: Api<DeserializeGuard<ServiceDefinition>> =
            Api::namespaced(self.clients.watch.clone(), &job.work.release_namespace);
        let one = watcher::Config::default()
            .fields(&format!("metadata.name={}", job.work.release_name))
            .streaming_lists();
        let mut events = std::pin::pin!(watcher(api, one).default_backoff());
        let gone = || {
            let name = &job.work.release_name;
            Fault::Failed(format!(
                "somebody removed ServiceDefinition {name} before it served"
            ))
        };
        // A list may be older than what was applied: a read of its own decides.
        let current = self.definitions(job);
        let lives = async || {
            let found = current.get_metadata_opt(&job.work.release_name).await?;
            Ok::<_, Fault>(found.is_some_and(|o| o.metadata.deletion_timestamp.is_none()))
        };
        let mut listed = false;
        let until = tokio::time::Instant::now() + self.helm.timeout;
        let mut said = "its controller has not said yet how it serves".to_owned();
        let mut taken_up = false;
        loop {
            tokio::select! {
                stop = attempt.until_stopped() => return Err(Fault::Stopped(stop)),
                // Nobody has looked at it: that is no fault of its own.
                () = tokio::time::sleep_until(until), if !taken_up => {
                    return Err(Fault::Outage { what: "the ServiceDefinition controller".into(), error: said });
                }
                () = tokio::time::sleep_until(until), if taken_up => {
                    return Err(Fault::Failed(format!("not serving after {} s: {said}", self.helm.timeout.as_secs())));
                }
                event = events.next() => {
                    let object = match event {
                        Some(Ok(Event::Apply(object))) => object,
                        Some(Ok(Event::InitApply(object))) => {
                            listed = true;
                            object
                        }
                        Some(Ok(Event::Delete(_))) if !lives().await? => return Err(gone()),
                        Some(Ok(Event::InitDone)) if !listed && !lives().await? => return Err(gone()),
                        Some(Ok(Event::Init)) => {
                            listed = false;
                            continue;
                        }
                        Some(Ok(Event::InitDone | Event::Delete(_)) | Err(_)) | None => continue,
                    };
                    let DeserializeGuard(Ok(object)) = object else { continue };
                    if object.metadata.deletion_timestamp.is_some() || object.metadata.generation.unwrap_or(0) < generation {
                        continue;
                    }
                    taken_up |= object.status.as_ref().and_then(|s| s.observed_generation) >= object.metadata.generation;
                    let part: Part = readiness::definition(&object);
                    let done = matches!(part.verdict, Verdict::Complete | Verdict::ScaledToZero);
                    let seen = Readiness::of(vec![part], crate::clock::now());
                    if seen.sentence != said {
                        attempt.log("svcforge", &seen.sentence);
                        attempt.seen(&seen).await?;
                        said.clone_from(&seen.sentence);
                    }
                    if done {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Removes the object, and waits until it is gone with all that its controller made of it.
    pub(super) async fn remove_definition(
        &self,
        job: &Job,
        attempt: &Attempt,
    ) -> Result<(), Fault> {
        attempt.step("Remove the definition").await?;
        let api = self.definitions(job);
        let name = &job.work.release_name;
        if let Some(found) = api.get_opt(name).await? {
            check_ours(&found, &self.installation, job)?;
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: found.uid(),
                    resource_version: None,
                }),
                ..DeleteParams::foreground()
            };
            match api.delete(name, &params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => other.map(|_| ())?,
            }
        }
        attempt.step("Wait until it is gone").await?;
        let until = tokio::time::Instant::now() + GONE_WITHIN;
        loop {
            let left = self.left_of(&job.work.release_namespace, name).await?;
            if left.is_empty() {
                return Ok(());
            }
            if tokio::time::Instant::now() > until {
                return Err(Fault::Failed(format!(
                    "still there after {} s: {}",
                    GONE_WITHIN.as_secs(),
                    left.join(", ")
                )));
            }
            tokio::select! {
                stop = attempt.until_stopped() => return Err(Fault::Stopped(stop)),
                () = tokio::time::sleep(Duration::from_millis(300)) => {}
            }
        }
    }

    /// What is left of a definition. Its Deployment does not hold its removal up: the API server collects that afterwards, and pods take
    /// their time to end.
    async fn left_of(&self, namespace: &str, name: &str) -> Result<Vec<String>, Fault> {
        let made = format!("{}={name}", crate::controller::OF);
        let (one, made) = (
            ListParams::default().fields(&format!("metadata.name={name}")),
            ListParams::default().labels(&made),
        );
        let mut left = self.named::<ServiceDefinition>(namespace, &one).await?;
        left.extend(self.named::<Deployment>(namespace, &made).await?);
        left.extend(self.named::<Service>(namespace, &made).await?);
        left.extend(self.named::<Pod>(namespace, &made).await?);
        Ok(left)
    }

    async fn named<K>(&self, namespace: &str, which: &ListParams) -> Result<Vec<String>, Fault>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.clients.request.clone(), namespace);
        let found = match api.list_metadata(which).await {
            // Who may not look waits for nothing: its parts are the cluster's to collect.
            Err(kube::Error::Api(status)) if status.code == 403 => return Ok(vec![]),
            // Of a kind that the cluster does not know any more nothing is left.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(vec![]),
            found => found?.items,
        };
        Ok(found
            .iter()
            .map(|o| format!("{} {}", K::kind(&()), o.name_any()))
            .collect())
    }
}

/// The merge patch (RFC 7386) that takes out of `found` what `wanted` does not have; an empty object when there is nothing.
fn surplus(wanted: &Value, found: &Value) -> Value {
    let mut patch = Map::new();
    for (key, value) in found.as_object().into_iter().flatten() {
        match wanted.get(key) {
            None => _ = patch.insert(key.clone(), Value::Null),
            Some(wanted) => {
                let inner = surplus(wanted, value);
                if inner.as_object().is_some_and(|i| !i.is_empty()) {
                    patch.insert(key.clone(), inner);
                }
            }
        }
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_added_is_taken_out_and_nothing_else() {
        let wanted = json!({"image": "a", "port": 1, "env": {"A": "1"}});
        assert_eq!(surplus(&wanted, &wanted), json!({}));
        let edited =
            json!({"image": "a", "port": 1, "env": {"A": "1", "B": "2"}, "description": "mine"});
        assert_eq!(
            surplus(&wanted, &edited),
            json!({"env": {"B": null}, "description": null})
        );
    }
}
