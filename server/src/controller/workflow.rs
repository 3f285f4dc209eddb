//! One pass over one Workflow: reads what its stages have become, creates those whose turn has come, updates those that live,
//! removes those that left the spec, writes the status.

use super::{
    OF_WORKFLOW, as_refusal,
    dormant::Right,
    passes::{Pass, Shared, Words, paused},
    stages::{Child, Graph, StageNeed, child_of, degraded, graph},
};
use crate::{
    cluster::{
        CONTROLLER, ServiceDefinition, ServiceDefinitionSpec, Stage, Workflow, WorkflowStatus,
    },
    provision::Fault,
};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::controller::Action,
};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use tracing::Span;

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

/// What passes share.
pub(super) struct Workflows(pub(super) Shared<Workflow>);

impl Workflows {
    fn definitions(&self) -> Api<ServiceDefinition> {
        Api::namespaced(self.0.client.clone(), &self.0.namespace)
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

    /// Creates by POST, so that an object which came in between is a conflict, never overwritten.
    async fn create(&self, of: &Workflow, name: &str, stage: &Stage) -> Result<Child, Fault> {
        let object: ServiceDefinition = serde_json::from_value(object(of, name, stage))
            .map_err(|e| Fault::Rejected(e.to_string()))?;
        let params = PostParams {
            field_manager: Some(CONTROLLER.into()),
            ..PostParams::default()
        };
        let uid = of.uid().unwrap_or_default();
        match self.definitions().create(&params, &object).await {
            Err(kube::Error::Api(s)) if s.code == 409 => {
                Ok(child_of(&uid, self.definitions().get_opt(name).await?))
            }
            created => {
                tracing::info!(event = "stage.created", stage = %stage.name);
                Ok(child_of(&uid, Some(created?)))
            }
        }
    }

    /// Brings a living stage to its spec. What the POST wrote is owned as an update: that becomes an apply first, or a variable that leaves
    /// the spec would stay.
    async fn update(
        &self,
        of: &Workflow,
        name: &str,
        stage: &Stage,
        found: &ServiceDefinition,
    ) -> Result<ServiceDefinition, Fault> {
        let api = self.definitions();
        let posted = |f: &&mut ManagedFieldsEntry| {
            f.manager.as_deref() == Some(CONTROLLER)
                && f.operation.as_deref() == Some("Update")
                && f.subresource.is_none()
        };
        let mut fields = found.managed_fields().to_vec();
        let created = fields.iter_mut().find(posted);
        let labelled = found.labels().get(OF_WORKFLOW) == Some(&of.name_any());
        if created.is_none() && found.spec == spec(of, stage) && labelled {
            return Ok(found.clone());
        }
        if let Some(entry) = created {
            entry.operation = Some("Apply".into());
            let ours = json!({"metadata": {"uid": found.uid(), "resourceVersion": found.resource_version(), "managedFields": fields}});
            match api
                .patch(name, &PatchParams::default(), &Patch::Merge(&ours))
                .await
            {
                // It has changed since it was read, which wakes the next pass: no reason to leave the other stages waiting.
                Err(kube::Error::Api(s)) if s.code == 409 => return Ok(found.clone()),
                other => other?,
            };
        }
        let mut object = object(of, name, stage);
        object["metadata"]["uid"] = json!(found.uid());
        let params = PatchParams::apply(CONTROLLER).force();
        let applied = api.patch(name, &params, &Patch::Apply(&object)).await?;
        tracing::info!(event = "stage.updated", stage = %stage.name);
        Ok(applied)
    }

    /// Updates what lives, then creates what has its turn: a dependency that is being updated is not ready any more. What the API server
    /// refuses holds up nobody else; it is returned, with its words.
    async fn work(
        &self,
        of: &Workflow,
        graph: &Graph<'_>,
        children: &mut BTreeMap<String, Child>,
    ) -> Result<BTreeMap<String, String>, Fault> {
        let mut refused = BTreeMap::new();
        for (name, stage) in &graph.stages {
            let Some(Child::Ours(found)) = children.get(name) else {
                continue;
            };
            match self
                .update(of, name, stage, found)
                .await
                .map_err(as_refusal)
            {
                Ok(applied) => _ = children.insert(name.clone(), Child::Ours(Box::new(applied))),
                Err(Fault::Rejected(why)) => _ = refused.insert(name.clone(), why),
                Err(fault) => return Err(fault),
            }
        }
        for ((name, stage), need) in graph.stages.iter().zip(graph.needs(children)) {
            if need != StageNeed::Create {
                continue;
            }
            match self.create(of, name, stage).await.map_err(as_refusal) {
                Ok(child) => _ = children.insert(name.clone(), child),
                Err(Fault::Rejected(why)) => _ = refused.insert(name.clone(), why),
                Err(fault) => return Err(fault),
            }
        }
        Ok(refused)
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

    async fn write(&self, of: &Workflow, new: WorkflowStatus) -> Result<(), Fault> {
        if of.status.as_ref() == Some(&new) {
            return Ok(());
        }
        let (ready, phase, progress) = (new.ready, new.phase.clone(), new.progress.clone());
        let message = new.message.clone();
        self.0.write_status(of, new, message.as_ref()).await?;
        tracing::info!(event = "workflow.status", ready, phase = %phase, progress = %progress);
        Ok(())
    }
}

impl Pass for Workflows {
    type Of = Workflow;
    const WORDS: Words = Words {
        resource: "workflows",
        quarantined: "workflow.quarantined",
        failed: "workflow.failed",
    };

    fn shared(&self) -> &Shared<Workflow> {
        &self.0
    }

    fn span(name: &str) -> Span {
        tracing::info_span!("pass", workflow = name)
    }

    async fn pass(&self, of: &Workflow) -> Result<Action, Fault> {
        let of = &self.0.as_written(of);
        if of.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let now = crate::clock::now();
        let graph = match graph(&of.name_any(), &of.spec.stages) {
            Ok(graph) => graph,
            Err(why) => {
                self.write(of, degraded(of, &why, now)).await?;
                return Ok(self.0.look_again(false));
            }
        };
        let uid = of.uid().unwrap_or_default();
        let names = graph.stages.iter().map(|(name, _)| name.clone()).collect();
        let mut children = self.children(&uid, names).await?;
        let paused = paused(of);
        let mut refused = BTreeMap::new();
        if paused.is_none() {
            refused = self.work(of, &graph, &mut children).await?;
            let keep = graph.stages.iter().map(|(name, _)| name.as_str()).collect();
            self.prune(of, &keep).await?;
        }
        let needs = graph.needs(&children);
        let mut new = graph.status(of, &needs, &children, &refused, now);
        if let Some(why) = paused.filter(|_| !new.ready) {
            new.message = Some(match new.message {
                Some(message) => format!("{why}; {message}"),
                None => why,
            });
        }
        let ready = new.ready;
        self.write(of, new).await?;
        if let Some(why) = refused.into_values().next() {
            return Err(Fault::Rejected(why));
        }
        Ok(self.0.look_again(ready))
    }
}

/// The ServiceDefinition that a stage comes to.
fn object(of: &Workflow, name: &str, stage: &Stage) -> serde_json::Value {
    json!({
        "apiVersion": "polychrome.dev/v1alpha1", "kind": "ServiceDefinition",
        "metadata": {
            "name": name,
            "labels": {OF_WORKFLOW: of.name_any()},
            "ownerReferences": of.controller_owner_ref(&()).into_iter().collect::<Vec<_>>(),
        },
        "spec": spec(of, stage),
    })
}

/// The same's spec.
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
