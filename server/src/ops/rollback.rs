//! A person moves an instance back: `upgrade --install` of an earlier revision, as a task of its own. Then it is held there until
//! the catalog moves on, or somebody says otherwise.

use super::{Ops, change_instance::reason, retry_instance::find_task};
use crate::{
    authz::{Action, Actor},
    db::{
        self,
        event::NewEvent,
        queue::{NewTask, Priority},
    },
    error::Error,
};
use serde::Deserialize;
use serde_json::json;
use svcforge_app::domain::{Act, InstanceState, Problem, Task, TaskKind};
use uuid::Uuid;

/// Where to.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackAsk {
    /// A version it ran before; the one before this one when left out.
    #[serde(default)]
    pub to_version: Option<String>,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

/// Does it.
///
/// # Errors
/// 404; 409 while it is not ready or failed, or when there is nothing to go back to; 422 without a reason.
pub async fn rollback(ops: &Ops, actor: &Actor, id: Uuid, ask: RollbackAsk) -> Result<Task, Error> {
    ops.require_on(actor, Action::ChangeInstance, id).await?;
    let why = reason(&ask.reason, "/reason")?;
    let mut tx = ops.pool.begin().await?;
    let found = db::instance::lock(&mut tx, id)
        .await?
        .ok_or_else(|| Problem::not_found("instance"))?;
    if !matches!(found.state, InstanceState::Ready | InstanceState::Failed) {
        return Err(
            Problem::conflict(format!("It is {}; wait until it is ready.", found.state)).into(),
        );
    }
    let kinds = [TaskKind::Upgrade, TaskKind::Provision, TaskKind::Rollback].map(TaskKind::as_str);
    if db::queue::has_open(&mut tx, id, &kinds).await? {
        return Err(Problem::conflict(
            "Another change of it is under way; wait until it has ended, or cancel it.",
        )
        .into());
    }
    let ran = db::instance::list_revisions(&mut *tx, id).await?;
    // What has just failed never ended well: then the newest that did is the one before.
    let skip = usize::from(found.state == InstanceState::Ready);
    let to = match &ask.to_version {
        Some(version) => ran
            .into_iter()
            .find(|(_, v, _)| v == version)
            .ok_or_else(|| {
                Problem::field("/to_version", format!("it has never run {version:?}"))
            })?,
        None => ran
            .into_iter()
            .nth(skip)
            .ok_or_else(|| Problem::conflict("There is no earlier revision to go back to."))?,
    };
    let (revision, version, parameters) = to;
    let reason = format!("rolled back to {version}: {why}");
    let task = NewTask {
        kind: TaskKind::Rollback.as_str(),
        instance_id: id,
        team_id: found.team_id,
        priority: Priority::Person,
        run_after: None,
        max_attempts: crate::tasks::ROLLBACK_ATTEMPTS,
        payload: json!({"entry_revision": revision, "parameters": parameters}),
        reason: &reason,
        requested_by: &actor.name,
        act: Act::PersonChange,
        rollout_type: None,
    };
    let task = db::queue::enqueue(&mut tx, task).await?;
    db::queue::drop_machine_upgrade(&mut tx, id, "rolled back by a person").await?;
    db::instance::hold_version(&mut tx, id, &format!("{} {reason}", actor.name)).await?;
    let message = format!("{}: {reason}", actor.name);
    let event = NewEvent {
        instance_id: id,
        kind: "instance.rollback",
        actor: &actor.name,
        message: &message,
        task_id: Some(task.id),
    };
    db::event::insert(&mut tx, event).await?;
    let detail = json!({"to": version, "reason": why});
    db::audit::insert(
        &mut tx,
        actor,
        "instance.rollback",
        ("instance", &id.to_string()),
        &detail,
    )
    .await?;
    tx.commit().await?;
    ops.shown(id).await?;
    find_task(ops, task.id).await
}
