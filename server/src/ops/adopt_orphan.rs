//! An admin adopts an orphan: an instance of its own takes the release over and brings it to what the entry says.

use super::{Ops, change_instance::reason};
use crate::{
    authz::{Action, Actor, Scope, require},
    db::{
        self,
        event::NewEvent,
        instance::NewInstance,
        queue::{NewTask, Priority},
    },
    error::{Error, constraint},
    ids,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use svcforge_app::domain::{
    Act, EntryKind, Instance, Problem, TaskKind, name::check_instance_name, parameters,
};
use uuid::Uuid;

/// Who takes it over, as what.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdoptAsk {
    /// Slug of the team that will own it; its namespace must be the orphan's.
    pub team: String,
    /// Catalog entry.
    #[serde(rename = "type")]
    pub service_type: String,
    /// Its name in the team.
    pub name: String,
    /// By the entry's schema.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub parameters: Map<String, Value>,
    /// Why.
    pub reason: String,
}

/// Does it: the row, and the task in which a worker labels the release and installs the entry's current revision over it.
///
/// # Errors
/// 403; 404; 409 unless it is an orphan that is there; 422 with the wrong field.
pub async fn adopt_orphan(
    ops: &Ops,
    actor: &Actor,
    id: Uuid,
    ask: AdoptAsk,
) -> Result<Instance, Error> {
    require(actor, Action::ManageRollouts, Scope::Platform, "orphan")?;
    let why = reason(&ask.reason, "/reason")?;
    let team = db::team::find(&ops.pool, &ask.team)
        .await?
        .ok_or_else(|| Problem::field("/team", format!("{:?} is no team", ask.team)))?;
    let entry = db::catalog::find_current(&ops.pool, &ask.service_type)
        .await?
        .filter(|e| e.entry.kind == EntryKind::Helm)
        .ok_or_else(|| {
            Problem::field(
                "/type",
                format!("{:?} is no chart of the catalog", ask.service_type),
            )
        })?;
    check_instance_name(&ask.name).map_err(|e| Problem::field("/name", e))?;
    let full =
        parameters::check(&entry.entry.parameters, &ask.parameters).map_err(Problem::invalid)?;
    let mut tx = ops.pool.begin().await?;
    let (kind, release, namespace, status) = db::drift::find_orphan(&mut tx, id)
        .await?
        .ok_or_else(|| Problem::not_found("orphan"))?;
    if kind != "orphan" || !matches!(status.as_str(), "open" | "ignored") {
        return Err(Problem::conflict("Only an orphan that is there can be adopted.").into());
    }
    if team.namespace != namespace {
        return Err(Problem::field(
            "/team",
            format!(
                "its namespace is {}, the release is in {namespace}",
                team.namespace
            ),
        )
        .into());
    }
    let instance = ids::new_id();
    let new = NewInstance {
        id: instance,
        team_id: team.id,
        service_type: &ask.service_type,
        kind: EntryKind::Helm,
        name: &ask.name,
        entry_revision_id: entry.id,
        release_name: &release,
        release_namespace: &namespace,
        parameters: &full,
        ttl_seconds: entry.entry.ttl.default.map(|s| s.0),
        created_by: &actor.name,
        maintenance_window: None,
    };
    db::instance::insert(&mut tx, &new)
        .await
        .map_err(|error| match constraint(&error) {
            Some("instance_name") => {
                Problem::field("/name", "is taken by another service of the team").into()
            }
            Some("instance_release") => Problem::conflict("A service has it already.").into(),
            _ => Error::from(error),
        })?;
    let task = NewTask {
        kind: TaskKind::Provision.as_str(),
        instance_id: instance,
        team_id: team.id,
        priority: Priority::Person,
        run_after: None,
        max_attempts: crate::tasks::PROVISION_ATTEMPTS,
        payload: json!({"adopt": true}),
        reason: "adopted by a person",
        requested_by: &actor.name,
        act: Act::PersonChange,
        rollout_type: None,
    };
    let task = db::queue::enqueue(&mut tx, task).await?;
    let message = format!("{} adopted release {release}: {why}", actor.name);
    let event = NewEvent {
        instance_id: instance,
        kind: "instance.adopted",
        actor: &actor.name,
        message: &message,
        task_id: Some(task.id),
    };
    db::event::insert(&mut tx, event).await?;
    db::drift::set_orphan(&mut tx, id, "adopted", &actor.name, &why).await?;
    let detail =
        json!({"release": release, "namespace": namespace, "instance": instance, "reason": why});
    db::audit::insert(
        &mut tx,
        actor,
        "orphan.adopt",
        ("orphan", &id.to_string()),
        &detail,
    )
    .await?;
    tx.commit().await?;
    ops.changes.changed("drift", "orphans");
    ops.shown(instance).await
}
