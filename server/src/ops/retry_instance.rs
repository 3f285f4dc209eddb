//! A person retries what failed, or cancels what waits or runs.

use super::Ops;
use crate::{
    authz::{Action, Actor},
    db::{
        self,
        event::NewEvent,
        queue::{Cancelled, NewTask, Priority},
    },
    error::Error,
};
use serde_json::json;
use svcforge_app::domain::{Act, InstanceState, Problem, Task, TaskKind, TaskState};
use uuid::Uuid;

/// Installs a failed instance again, as it is asked now; or removes one again whose removal failed.
///
/// # Errors
/// 404; 409 unless it (or its removal) has failed for good.
pub async fn retry_instance(ops: &Ops, actor: &Actor, id: Uuid) -> Result<Task, Error> {
    ops.require_on(actor, Action::ChangeInstance, id).await?;
    let mut tx = ops.pool.begin().await?;
    let found = db::instance::lock(&mut tx, id)
        .await?
        .ok_or_else(|| Problem::not_found("instance"))?;
    let (kind, priority, attempts) = match found.state {
        InstanceState::Failed => (
            TaskKind::Provision,
            Priority::Person,
            crate::tasks::PROVISION_ATTEMPTS,
        ),
        InstanceState::Deleting => (
            TaskKind::Deprovision,
            Priority::Deprovision,
            crate::tasks::DEPROVISION_ATTEMPTS,
        ),
        other => {
            return Err(Problem::conflict(format!(
                "It is {other}; only what has failed can be retried."
            ))
            .into());
        }
    };
    // A removal that has failed waits for the tick's next try, and need not; one that waits out its grace must.
    let busy = match kind {
        TaskKind::Deprovision if db::queue::has_failed(&mut tx, id, kind.as_str()).await? => {
            db::queue::under_way(&mut tx, id, kind.as_str()).await?
        }
        _ => db::queue::has_open(&mut tx, id, &[kind.as_str()]).await?,
    };
    if busy {
        return Err(Problem::conflict("It is being tried already.").into());
    }
    // Who agreed that it takes over what stands in its place did so for the next try, too.
    let payload = match db::queue::undone(&mut tx, id, kind.as_str()).await? {
        Some(undone) if undone["adopt"] == true => json!({"adopt": true}),
        _ => json!({}),
    };
    let task = NewTask {
        kind: kind.as_str(),
        instance_id: id,
        team_id: found.team_id,
        priority,
        run_after: None,
        max_attempts: attempts,
        payload,
        reason: "retried by a person",
        requested_by: &actor.name,
        act: Act::PersonChange,
        rollout_type: None,
    };
    let task = db::queue::enqueue(&mut tx, task).await?;
    // A person takes over: what was tried before does not count any more.
    db::drift::forget(&mut tx, id).await?;
    // A change that failed is not in what its instance points to: it must be asked for again.
    let how = match kind {
        TaskKind::Provision => ", with the settings that are set",
        _ => "",
    };
    let message = format!("{} asked to try again{how}", actor.name);
    let event = NewEvent {
        instance_id: id,
        kind: "instance.retry",
        actor: &actor.name,
        message: &message,
        task_id: Some(task.id),
    };
    db::event::insert(&mut tx, event).await?;
    db::audit::insert(
        &mut tx,
        actor,
        "instance.retry",
        ("instance", &id.to_string()),
        &json!({}),
    )
    .await?;
    tx.commit().await?;
    ops.shown(id).await?;
    find_task(ops, task.id).await
}

/// Retries what a failed task was to do.
///
/// # Errors
/// 404; 409 unless it and its instance have failed.
pub async fn retry_task(ops: &Ops, actor: &Actor, id: Uuid) -> Result<Task, Error> {
    let task = find_task(ops, id).await?;
    ops.require_on(actor, Action::ChangeInstance, task.instance_id.0)
        .await?;
    if task.state != TaskState::Failed {
        return Err(Problem::conflict("Only a task that has failed can be retried.").into());
    }
    retry_instance(ops, actor, task.instance_id.0).await
}

/// Cancels a task: one that waits ends now, one that runs is asked to stop.
///
/// # Errors
/// 404; 409 when it has ended, or when it removes an instance (undo comes with the grace time).
pub async fn cancel_task(ops: &Ops, actor: &Actor, id: Uuid) -> Result<Task, Error> {
    let task = find_task(ops, id).await?;
    ops.require_on(actor, Action::ChangeInstance, task.instance_id.0)
        .await?;
    if task.kind == TaskKind::Deprovision.as_str() {
        return Err(Problem::conflict("A removal cannot be cancelled.").into());
    }
    let mut tx = ops.pool.begin().await?;
    let why = format!("{} cancelled it", actor.name);
    db::queue::lock_lanes(&mut tx, &[task.instance_id.0]).await?;
    let looked = db::queue::look(&mut tx, id).await?;
    let done = db::queue::cancel(&mut tx, task.instance_id.0, id, &why).await?;
    if done == Cancelled::TooLate {
        return Err(Problem::conflict("It has ended already.").into());
    }
    let event = NewEvent {
        instance_id: task.instance_id.0,
        kind: "task.cancel",
        actor: &actor.name,
        message: &why,
        task_id: Some(id),
    };
    db::event::insert(&mut tx, event).await?;
    if done == Cancelled::Ended {
        let (act, others) = looked.unwrap_or((None, false));
        // Where nothing is left that would move the instance on, say so on it, so that a person can retry.
        let own: &[InstanceState] = match TaskKind::parse(&task.kind) {
            _ if others => &[],
            Some(TaskKind::Provision) => &[InstanceState::Requested, InstanceState::Provisioning],
            _ => &[InstanceState::Upgrading],
        };
        for state in own {
            db::instance::move_state(
                &mut tx,
                task.instance_id.0,
                *state,
                InstanceState::Failed,
                Some(&why),
            )
            .await?;
        }
        // Else the next tick would only ask again.
        if matches!(act.as_deref(), Some("upgrade" | "person_upgrade")) {
            let why = format!("{why}; until the catalog moves on, or somebody upgrades it");
            db::instance::hold_version(&mut tx, task.instance_id.0, &why).await?;
        }
    }
    db::audit::insert(
        &mut tx,
        actor,
        "task.cancel",
        ("task", &id.to_string()),
        &json!({}),
    )
    .await?;
    tx.commit().await?;
    ops.changes.changed("task", id);
    ops.shown(task.instance_id.0).await?;
    find_task(ops, id).await
}

pub(super) async fn find_task(ops: &Ops, id: Uuid) -> Result<Task, Error> {
    let filter = db::task::Filter {
        id: Some(id),
        ..Default::default()
    };
    let found = db::task::list(&ops.pool, &filter, 1).await?.pop();
    Ok(found.ok_or_else(|| Problem::not_found("task"))?)
}
