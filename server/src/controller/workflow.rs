//! One pass over one Workflow: reads what its stages have become, creates those whose turn has come, updates those that live,
//! removes those that left the spec, writes the status.

use super::{
    OF_WORKFLOW, as_refusal,
    dormant::Right,
    not_taken_up,
    passes::{Pass, Shared, Words, lock, paused},
    run::Guarded,
    stages::{Child, Graph, LONGEST, StageNeed, child_of, differs, graph, held},
};
use crate::{
    cluster::{
        CONTROLLER, ServiceDefinition, ServiceDefinitionSpec, Stage, Workflow, WorkflowStatus,
        trouble::plain,
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
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Mutex,
};
use tokio::sync::OnceCell;
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
pub(super) struct Workflows {
    shared: Shared<Workflow>,
    /// What was last applied and what it made, by Workflow and definition: what others own there is no reason to apply again.
    applied: Mutex<HashMap<(String, String), Made>>,
}

/// A spec that was applied, and the object's uid and generation after.
type Made = (ServiceDefinitionSpec, Option<String>, Option<i64>);

/// Whether the Workflow is the newest, once it was asked in a pass.
type Newest = OnceCell<()>;

impl Workflows {
    pub(super) fn new(shared: Shared<Workflow>) -> Self {
        let applied = Mutex::default();
        Self { shared, applied }
    }

    fn definitions(&self) -> Api<ServiceDefinition> {
        Api::namespaced(self.shared.client.clone(), &self.shared.namespace)
    }

    /// One as it is, readable or not.
    async fn find(&self, uid: &str, name: &str) -> Result<Child, Fault> {
        let (client, namespace) = (self.shared.client.clone(), &self.shared.namespace);
        let api: Api<Guarded<ServiceDefinition>> = Api::namespaced(client, namespace);
        Ok(child_of(uid, api.get_opt(name).await?))
    }

    async fn children(
        &self,
        uid: &str,
        names: Vec<String>,
    ) -> Result<BTreeMap<String, Child>, Fault> {
        futures::stream::iter(names)
            .map(|name| async move {
                let child = self.find(uid, &name).await?;
                Ok((name, child))
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
            Err(kube::Error::Api(s)) if s.code == 409 => self.find(&uid, name).await,
            created => {
                tracing::info!(event = "stage.created", stage = %stage.name);
                Ok(Child::Ours(Box::new(created?)))
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
        newest: &Newest,
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
        let key = (of.name_any(), name.to_owned());
        let made = |of: &ServiceDefinition, spec| (spec, of.uid(), of.metadata.generation);
        let wanted = spec(of, stage);
        let stands = found.spec == wanted
            || lock(&self.applied).get(&key) == Some(&made(found, wanted.clone()));
        if created.is_none() && stands && labelled {
            return Ok(found.clone());
        }
        newest
            .get_or_try_init(|| self.shared.must_be_newest(of))
            .await?;
        if let Some(entry) = created {
            entry.operation = Some("Apply".into());
            let ours = json!({"metadata": {"uid": found.uid(), "resourceVersion": found.resource_version(), "managedFields": fields}});
            match api
                .patch(name, &PatchParams::default(), &Patch::Merge(&ours))
                .await
            {
                // It has changed since it was read, which wakes the next pass: no reason to leave the other stages waiting.
                Err(kube::Error::Api(s)) if s.code == 409 => {
                    // Whatever its status says, it is not of what this stage is now.
                    let status = None;
                    return Ok(ServiceDefinition {
                        status,
                        ..found.clone()
                    });
                }
                other => other?,
            };
        }
        let mut object = object(of, name, stage);
        object["metadata"]["uid"] = json!(found.uid());
        let params = PatchParams::apply(CONTROLLER).force();
        let applied = api.patch(name, &params, &Patch::Apply(&object)).await?;
        lock(&self.applied).insert(key, made(&applied, wanted));
        tracing::info!(event = "stage.updated", stage = %stage.name);
        Ok(applied)
    }

    /// Updates what lives, then creates what has its turn: a dependency that is being updated is not ready any more. What the API server
    /// refuses holds up nobody else; it is returned, with its words. Nor does what fails otherwise: the others have their turn first.
    /// Only where nobody answers does the pass end at once.
    async fn work(
        &self,
        of: &Workflow,
        graph: &Graph<'_>,
        children: &mut BTreeMap<String, Child>,
    ) -> Result<BTreeMap<String, String>, Fault> {
        let (mut refused, mut failed, newest) = (BTreeMap::new(), None, Newest::new());
        for (name, stage) in &graph.stages {
            let Some(Child::Ours(found)) = children.get(name) else {
                continue;
            };
            match self
                .update(of, name, stage, found, &newest)
                .await
                .map_err(as_refusal)
            {
                Ok(applied) => _ = children.insert(name.clone(), Child::Ours(Box::new(applied))),
                Err(Fault::Rejected(why)) => _ = refused.insert(name.clone(), why),
                // Nobody answers: the others would only wait for the same.
                Err(fault @ Fault::Outage { .. }) => return Err(fault),
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        for ((name, stage), need) in graph.stages.iter().zip(graph.needs(children)) {
            if need != StageNeed::Create {
                continue;
            }
            let created = async {
                newest
                    .get_or_try_init(|| self.shared.must_be_newest(of))
                    .await?;
                self.create(of, name, stage).await
            };
            match created.await.map_err(as_refusal) {
                Ok(child) => _ = children.insert(name.clone(), child),
                Err(Fault::Rejected(why)) => _ = refused.insert(name.clone(), why),
                Err(fault @ Fault::Outage { .. }) => return Err(fault),
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        failed.map_or(Ok(refused), Err)
    }

    /// Removes what was a stage once. Returns what could not be removed, with its words: it holds up nothing else.
    async fn prune(&self, of: &Workflow, keep: &BTreeSet<&str>) -> Result<Option<String>, Fault> {
        // So long a name is no label: nothing carries it.
        if of.name_any().len() > LONGEST {
            return Ok(None);
        }
        let uid = of.uid().unwrap_or_default();
        let (newest, mut said) = (Newest::new(), None);
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
            newest
                .get_or_try_init(|| self.shared.must_be_newest(of))
                .await?;
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: found.uid(),
                    resource_version: None,
                }),
                ..DeleteParams::background()
            };
            match self.definitions().delete(&name, &params).await {
                Err(kube::Error::Api(s)) if s.code == 404 => {}
                Ok(_) => tracing::info!(event = "stage.removed", definition = %name),
                Err(error) => match as_refusal(Fault::from(error)) {
                    fault @ Fault::Outage { .. } => return Err(fault),
                    fault => {
                        let why = plain(&fault.to_string());
                        said = said.or(Some(format!(
                            "{name} left the spec and could not be removed: {why}"
                        )));
                    }
                },
            }
        }
        Ok(said)
    }

    async fn write(&self, of: &Workflow, new: WorkflowStatus) -> Result<(), Fault> {
        if !differs(of.status.as_ref(), &new) {
            return Ok(());
        }
        let (ready, phase, progress) = (new.ready, new.phase.clone(), new.progress.clone());
        let message = new.message.clone();
        self.shared.write_status(of, new, message.as_ref()).await?;
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
        &self.shared
    }

    fn forget(&self, name: &str) {
        lock(&self.applied).retain(|(workflow, _), _| workflow != name);
    }

    fn span(name: &str) -> Span {
        tracing::info_span!("pass", workflow = name)
    }

    async fn pass(&self, of: &Workflow) -> Result<Action, Fault> {
        let of = &self.shared.as_written(of);
        if of.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let now = crate::clock::now();
        let graph = match graph(&of.name_any(), &of.spec.stages) {
            Ok(graph) => graph,
            Err(why) => {
                self.write(of, held(of, "Degraded", &why, now)).await?;
                return Ok(self.shared.look_again(false));
            }
        };
        let done = self.advance(of, &graph).await;
        let told = of.status.as_ref();
        let told = told.map_or((None, None), |s| {
            (s.observed_generation, s.message.as_deref())
        });
        if let Err(fault) = &done
            && let Some(why) = not_taken_up(fault, told, of.metadata.generation)
        {
            // What keeps the stages from being answered for may keep this from it, too.
            _ = self.write(of, held(of, "Pending", &why, now)).await;
        }
        let (new, refused) = done?;
        let ready = new.ready;
        self.write(of, new).await?;
        match refused {
            Some(why) => Err(Fault::Rejected(why)),
            None => Ok(self.shared.look_again(ready)),
        }
    }
}

impl Workflows {
    /// Does what has its turn. Returns the status after, and what was refused.
    async fn advance(
        &self,
        of: &Workflow,
        graph: &Graph<'_>,
    ) -> Result<(WorkflowStatus, Option<String>), Fault> {
        let uid = of.uid().unwrap_or_default();
        let names = graph.stages.iter().map(|(name, _)| name.clone()).collect();
        let mut children = self.children(&uid, names).await?;
        let paused = paused(of);
        let (mut refused, mut left) = (BTreeMap::new(), None);
        if paused.is_none() {
            refused = self.work(of, graph, &mut children).await?;
            let keep = graph.stages.iter().map(|(name, _)| name.as_str()).collect();
            left = self.prune(of, &keep).await?;
        }
        let needs = graph.needs(&children);
        let mut new = graph.status(of, &needs, &children, &refused, crate::clock::now());
        let more = paused.filter(|_| !new.ready).or(left.clone());
        if let Some(more) = more {
            new.message = Some(match new.message {
                Some(message) => format!("{more}; {message}"),
                None => more,
            });
        }
        Ok((new, refused.into_values().next().or(left)))
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
