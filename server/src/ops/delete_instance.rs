//! A person removes an instance: it moves to `deleting`, what waits for it is cancelled, what runs is asked to stop, and a
//! deprovision task is enqueued, in one transaction.

use super::Ops;
use crate::{
    authz::{Action, Actor},
    db::{
        self,
        event::NewEvent,
        queue::{NewTask, Priority},
    },
    error::Error,
};
use serde_json::json;
use svcforge_app::domain::{Act, Instance, InstanceState, Problem, TaskKind};
use uuid::Uuid;

/// What the asker must have seen.
#[derive(Clone, Debug, Default)]
pub struct Precondition {
    /// The version they looked at.
    pub version: Option<i64>,
    /// The name they typed.
    pub confirm: Option<String>,
    /// Whether both are required (a browser) or optional (a token).
    pub required: bool,
}

/// Does it. Asking again while it is being removed changes nothing.
///
/// # Errors
/// 404; 428 without a required precondition; 412 when stale; 422 when the typed name differs; 409 when it is gone already.
pub async fn delete_instance(
    ops: &Ops,
    actor: &Actor,
    id: Uuid,
    when: Precondition,
) -> Result<Instance, Error> {
    ops.require_on(actor, Action::DeleteInstance, id).await?;
    let mut tx = ops.pool.begin().await?;
    let found = db::instance::lock(&mut tx, id)
        .await?
        .ok_or_else(|| Problem::not_found("instance"))?;
    check(&when, &found.name, found.version)?;
    if found.state == InstanceState::Deleting {
        drop(tx);
        return super::find_instance(&ops.pool, id).await;
    }
    if !db::instance::move_state(&mut tx, id, found.state, InstanceState::Deleting, None)
        .await
        .map_err(|e| gone(found.state, e))?
    {
        return Err(Problem::conflict("It changed meanwhile. Look again.").into());
    }
    let why = format!("{} removed it", actor.name);
    db::queue::overtake(&mut tx, id, TaskKind::Deprovision.as_str(), &why).await?;
    let (revision, _) = db::catalog::load(&mut *tx, found.entry_revision_id).await?;
    let grace = revision.entry.delete_grace.0;
    let run_after = match grace {
        0 => None,
        seconds => Some(db::now(&mut *tx).await? + jiff::SignedDuration::from_secs(seconds)),
    };
    let task = NewTask {
        kind: TaskKind::Deprovision.as_str(),
        instance_id: id,
        team_id: found.team_id,
        priority: Priority::Deprovision,
        run_after,
        max_attempts: crate::tasks::DEPROVISION_ATTEMPTS,
        payload: json!({}),
        reason: "removed by a person",
        requested_by: &actor.name,
        act: Act::Delete,
        rollout_type: None,
    };
    let task = db::queue::enqueue(&mut tx, task).await?;
    let event = NewEvent {
        instance_id: id,
        kind: "instance.delete",
        actor: &actor.name,
        message: &why,
        task_id: Some(task.id),
    };
    db::event::insert(&mut tx, event).await?;
    db::audit::insert(
        &mut tx,
        actor,
        "instance.delete",
        ("instance", &id.to_string()),
        &json!({"name": found.name}),
    )
    .await?;
    tx.commit().await?;
    ops.changes.changed("task", task.id);
    ops.shown(id).await
}

fn gone(state: InstanceState, error: sqlx::Error) -> Error {
    match state {
        InstanceState::Deleted => Problem::conflict("It has been removed already.").into(),
        _ => error.into(),
    }
}

fn check(when: &Precondition, name: &str, version: i64) -> Result<(), Problem> {
    match when.version {
        None if when.required => {
            return Err(Problem::look_first());
        }
        Some(seen) if seen != version => {
            return Err(Problem::stale());
        }
        _ => {}
    }
    match when.confirm.as_deref() {
        None if when.required => Err(Problem::field(
            "/confirm",
            "type the service's name to confirm",
        )),
        Some(typed) if typed != name => Err(Problem::field(
            "/confirm",
            format!("is not its name; type {name} to confirm"),
        )),
        _ => Ok(()),
    }
}
