//! One pass over one Workflow: reads what its stages have become, creates those whose turn has come, updates those that live,
//! removes those that left the spec, writes the status.

use super::{
    Backoff, OF_WORKFLOW, PAUSED,
    dormant::Right,
    run::{Guarded, Pace},
    stages::{Child, StageNeed, child_of, degraded, graph},
};
use crate::{
    cluster::{
        CONTROLLER, ServiceDefinition, ServiceDefinitionSpec, Stage, Workflow, WorkflowStatus,
    },
    provision::Fault,
};
use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
    runtime::{controller::Action, reflector::ObjectRef},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::sync::mpsc;
use tracing::Instrument;

/// What it needs in the apps namespace.
pub(super) const RIGHTS: &[Right] = &[
    ("polychrome.dev", "workflows", &["list", "watch"]),
    ("polychrome.dev", "workflows/status", &["patch"]),
    (
        "polychrome.dev",
        "servicedefinitions",
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
];

/// Children read at once.
const READS: usize = 8;

type Key = ObjectRef<Guarded<Workflow>>;

/// What passes share.
pub(super) struct Workflows {
    client: Client,
    namespace: String,
    pace: Pace,
    wake: mpsc::UnboundedSender<Key>,
    backoff: Backoff<Key>,
}

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct Failed(#[from] Fault);

impl Workflows {
    pub(super) fn new(
        client: Client,
        namespace: &str,
        pace: Pace,
        wake: mpsc::UnboundedSender<Key>,
    ) -> Self {
        Self {
            client,
            namespace: namespace.into(),
            pace,
            wake,
            backoff: Backoff::default(),
        }
    }

    fn definitions(&self) -> Api<ServiceDefinition> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn children(
        &self,
        uid: &str,
        names: Vec<String>,
    ) -> Result<BTreeMap<String, Child>, Fault> {
        let api = &self.definitions();
        futures::stream::iter(names)
            .map(|name| async move {
                let found = api.get_opt(&name).await?;
                Ok((name, child_of(uid, found)))
            })
            .buffer_unordered(READS)
            .try_collect()
            .await
    }

    /// Creates without force, so that an object that came in between is a conflict and not overwritten; updates by uid.
    async fn apply(
        &self,
        of: &Workflow,
        name: &str,
        stage: &Stage,
        living: Option<&ServiceDefinition>,
    ) -> Result<ServiceDefinition, Fault> {
        let desired = spec(of, stage);
        if let Some(found) = living
            .filter(|f| f.spec == desired && f.labels().get(OF_WORKFLOW) == Some(&of.name_any()))
        {
            return Ok(found.clone());
        }
        let mut object = json!({
            "apiVersion": "polychrome.dev/v1alpha1", "kind": "ServiceDefinition",
            "metadata": {
                "name": name,
                "labels": {OF_WORKFLOW: of.name_any()},
                "ownerReferences": of.controller_owner_ref(&()).into_iter().collect::<Vec<_>>(),
            },
            "spec": desired,
        });
        if let Some(uid) = living.and_then(ResourceExt::uid) {
            object["metadata"]["uid"] = json!(uid);
        }
        let mut params = PatchParams::apply(CONTROLLER);
        params.force = living.is_some();
        let applied = self
            .definitions()
            .patch(name, &params, &Patch::Apply(&object))
            .await?;
        tracing::info!(event = if living.is_some() { "stage.updated" } else { "stage.created" }, stage = %stage.name);
        Ok(applied)
    }

    /// Removes what was a stage once.
    async fn prune(&self, of: &Workflow, keep: &BTreeSet<&str>) -> Result<(), Fault> {
        let uid = of.uid().unwrap_or_default();
        let labelled = ListParams::default().labels(&format!("{OF_WORKFLOW}={}", of.name_any()));
        for found in self.definitions().list_metadata(&labelled).await?.items {
            let name = found.name_any();
            let ours = found
                .owner_references()
                .iter()
                .any(|o| o.controller == Some(true) && o.uid == uid);
            if !ours || keep.contains(name.as_str()) || found.metadata.deletion_timestamp.is_some()
            {
                continue;
            }
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: found.uid(),
                    resource_version: None,
                }),
                ..DeleteParams::background()
            };
            match self.definitions().delete(&name, &params).await {
                Err(kube::Error::Api(s)) if s.code == 404 => {}
                other => {
                    other?;
                    tracing::info!(event = "stage.removed", definition = %name);
                }
            }
        }
        Ok(())
    }

    async fn pass(&self, of: &Workflow) -> Result<Action, Fault> {
        if of.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let now = crate::clock::now();
        let graph = match graph(&of.name_any(), &of.spec.stages) {
            Ok(graph) => graph,
            Err(why) => {
                self.write(of, degraded(of, &why, now)).await?;
                return Ok(Action::requeue(self.pace.ready));
            }
        };
        let uid = of.uid().unwrap_or_default();
        let names = graph.stages.iter().map(|(name, _)| name.clone()).collect();
        let mut children = self.children(&uid, names).await?;
        let needs = graph.needs(&children);
        let paused = of
            .annotations()
            .get(PAUSED)
            .is_some_and(|v| !matches!(v.trim(), "" | "false" | "0"));
        if !paused {
            for ((name, stage), need) in graph.stages.iter().zip(&needs) {
                let applied = match (need, children.get(name)) {
                    (StageNeed::Create, _) => self.apply(of, name, stage, None).await?,
                    (StageNeed::Update, Some(Child::Ours(found))) => {
                        self.apply(of, name, stage, Some(found)).await?
                    }
                    _ => continue,
                };
                children.insert(name.clone(), Child::Ours(Box::new(applied)));
            }
            let keep = graph.stages.iter().map(|(name, _)| name.as_str()).collect();
            self.prune(of, &keep).await?;
        }
        let mut new = graph.status(of, &needs, &children, now);
        if paused && !new.ready {
            let why = format!("paused by the annotation {PAUSED}");
            new.message = Some(new.message.map_or(why.clone(), |m| format!("{why}; {m}")));
        }
        let ready = new.ready;
        self.write(of, new).await?;
        Ok(Action::requeue(if ready {
            self.pace.ready
        } else {
            self.pace.pending
        }))
    }

    async fn write(&self, of: &Workflow, new: WorkflowStatus) -> Result<(), Fault> {
        if of.status.as_ref() == Some(&new) {
            return Ok(());
        }
        let api: Api<Workflow> = Api::namespaced(self.client.clone(), &self.namespace);
        let patch = json!({
            "apiVersion": "polychrome.dev/v1alpha1", "kind": "Workflow",
            "metadata": {"name": of.name_any(), "uid": of.uid()},
            "status": new,
        });
        let params = PatchParams::apply(CONTROLLER).force();
        api.patch_status(&of.name_any(), &params, &Patch::Apply(&patch))
            .await?;
        tracing::info!(event = "workflow.status", ready = new.ready, phase = %new.phase, progress = %new.progress);
        Ok(())
    }
}

/// The ServiceDefinition's spec that a stage comes to.
fn spec(of: &Workflow, stage: &Stage) -> ServiceDefinitionSpec {
    ServiceDefinitionSpec {
        description: None,
        owner: Some(format!("workflow:{}", of.name_any())),
        template: stage.template.clone(),
        image: stage.image.clone(),
        port: stage.port,
        replicas: stage.replicas,
        env: stage.env.clone(),
    }
}

/// One pass.
pub(super) async fn pass(
    object: Arc<Guarded<Workflow>>,
    cx: Arc<Workflows>,
) -> Result<Action, Failed> {
    let of = match &object.0 {
        Ok(of) => of,
        Err(invalid) => {
            tracing::warn!(event = "workflow.quarantined", workflow = %object.name_any(), error = %invalid.error);
            return Ok(Action::await_change());
        }
    };
    let span = tracing::info_span!("workflow", workflow = %of.name_any());
    let done = cx.pass(of).instrument(span).await;
    let outcome = if done.is_ok() { "done" } else { "failed" };
    metrics::counter!("svcforge_controller_passes_total", "resource" => "workflows", "outcome" => outcome).increment(1);
    let action = done?;
    for waiting in cx.backoff.succeeded(&ObjectRef::from_obj(&*object)) {
        let _ = cx.wake.send(waiting);
    }
    Ok(action)
}

/// How long a failed object waits.
pub(super) fn failed(object: Arc<Guarded<Workflow>>, error: &Failed, cx: Arc<Workflows>) -> Action {
    let outage = matches!(error.0, Fault::Outage { .. });
    let pause = cx.backoff.failed(
        ObjectRef::from_obj(&*object),
        object.meta().generation,
        outage,
        crate::ids::jitter(),
    );
    tracing::warn!(event = "workflow.failed", workflow = %object.name_any(), error = %error, again_s = pause.as_secs());
    Action::requeue(pause)
}
