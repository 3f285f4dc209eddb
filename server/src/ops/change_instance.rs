//! A person changes an instance: other parameters or another end of its life; or the catalog's newer version.

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
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use svcforge_app::domain::{Instance, InstanceState, Problem, Task, TaskKind, parameters};
use uuid::Uuid;

/// What to change; what is left out stays.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// What to change of them, by the schema of the revision it runs; what is left out stays as it is.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// When it is removed by itself; null for never.
    #[serde(default, with = "present")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Option<Timestamp>>,
}

/// Tells a null from a field left out.
mod present {
    use serde::{Deserialize, Deserializer};
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Option<T>>, D::Error> {
        Option::deserialize(d).map(Some)
    }
}

/// Changes it. New parameters go out as an upgrade task on the revision it runs; the rest is written at once.
///
/// # Errors
/// 404; 412 when stale; 409 while it is not ready or failed; 422 with every wrong field.
pub async fn change_instance(
    ops: &Ops,
    actor: &Actor,
    id: Uuid,
    version: i64,
    change: Change,
) -> Result<Instance, Error> {
    ops.require_on(actor, Action::ChangeInstance, id).await?;
    let mut tx = ops.pool.begin().await?;
    let found = db::instance::lock(&mut tx, id)
        .await?
        .ok_or_else(|| Problem::not_found("instance"))?;
    if found.version != version {
        return Err(Problem::stale().into());
    }
    let (revision, _) = db::catalog::load(&mut *tx, found.entry_revision_id).await?;
    if let Some(at) = change.expires_at {
        let now = db::now(&mut *tx).await?;
        let max = revision.entry.ttl.max;
        let latest = max.map(|s| now + jiff::SignedDuration::from_secs(s.0));
        match (at, latest) {
            (Some(at), _) if at <= now => {
                return Err(Problem::field(
                    "/expires_at",
                    "lies in the past; delete the service instead",
                )
                .into());
            }
            (Some(at), Some(latest)) if at > latest => {
                return Err(
                    Problem::field("/expires_at", format!("must be at most {latest}")).into(),
                );
            }
            (None, Some(latest)) => {
                return Err(Problem::field(
                    "/expires_at",
                    format!("is required by the catalog, at most {latest}"),
                )
                .into());
            }
            _ => {}
        }
        if matches!(
            found.state,
            InstanceState::Deleting | InstanceState::Deleted
        ) {
            return Err(Problem::conflict(format!("It is {}.", found.state)).into());
        }
        db::instance::set_expiry(&mut tx, id, at).await?;
        let message = at.map_or("It no longer expires".into(), |at| {
            format!("It now expires at {at}")
        });
        let event = NewEvent {
            instance_id: id,
            kind: "instance.expiry",
            actor: &actor.name,
            message: &message,
            task_id: None,
        };
        db::event::insert(&mut tx, event).await?;
    }
    if let Some(given) = &change.parameters {
        let old = db::instance::load_work(&mut *tx, id).await?.parameters;
        let mut merged = old.clone();
        merged.extend(given.clone());
        let full =
            parameters::check(&revision.entry.parameters, &merged).map_err(Problem::invalid)?;
        parameters::check_immutable(&revision.entry.parameters, &old, &full)
            .map_err(Problem::invalid)?;
        let payload = json!({"entry_revision": found.entry_revision_id, "parameters": full});
        enqueue_upgrade(
            &mut tx,
            actor,
            &found,
            payload,
            "parameters changed by a person",
        )
        .await?;
        db::instance::touch(&mut tx, id).await?;
    }
    let detail =
        json!({"parameters": change.parameters.is_some(), "expires_at": change.expires_at});
    db::audit::insert(
        &mut tx,
        actor,
        "instance.change",
        ("instance", &id.to_string()),
        &detail,
    )
    .await?;
    tx.commit().await?;
    ops.shown(id).await
}

/// Moves it to the version that the catalog offers, with the parameters it has. A person's upgrade waits for no window.
///
/// # Errors
/// 404; 409 while it is not ready or failed, when it runs that version, or when its entry has left the catalog; 422 when its
/// parameters do not fit the new schema.
pub async fn upgrade_instance(ops: &Ops, actor: &Actor, id: Uuid) -> Result<Task, Error> {
    ops.require_on(actor, Action::ChangeInstance, id).await?;
    let mut tx = ops.pool.begin().await?;
    let found = db::instance::lock(&mut tx, id)
        .await?
        .ok_or_else(|| Problem::not_found("instance"))?;
    let work = db::instance::load_work(&mut *tx, id).await?;
    let target = db::catalog::find_current(&mut *tx, &work.service_type)
        .await?
        .ok_or_else(|| Problem::conflict(format!("{} has left the catalog.", work.service_type)))?;
    if target.id == found.entry_revision_id && found.state != InstanceState::Failed {
        return Err(
            Problem::conflict(format!("It runs {} already.", target.entry.chart_version)).into(),
        );
    }
    let full =
        parameters::check(&target.entry.parameters, &work.parameters).map_err(Problem::invalid)?;
    let payload = json!({"entry_revision": target.id, "parameters": full});
    let reason = format!(
        "upgrade to {} asked by a person",
        target.entry.chart_version
    );
    let task = enqueue_upgrade(&mut tx, actor, &found, payload, &reason).await?;
    let detail = json!({"to": target.entry.chart_version});
    db::audit::insert(
        &mut tx,
        actor,
        "instance.upgrade",
        ("instance", &id.to_string()),
        &detail,
    )
    .await?;
    tx.commit().await?;
    ops.shown(id).await?;
    let filter = db::task::Filter {
        id: Some(task),
        ..Default::default()
    };
    let task = db::task::list(&ops.pool, &filter, 1).await?.pop();
    Ok(task.ok_or_else(|| Problem::not_found("task"))?)
}

async fn enqueue_upgrade(
    tx: &mut sqlx::PgConnection,
    actor: &Actor,
    found: &db::instance::Locked,
    payload: Value,
    reason: &str,
) -> Result<Uuid, Error> {
    if !matches!(found.state, InstanceState::Ready | InstanceState::Failed) {
        return Err(
            Problem::conflict(format!("It is {}; wait until it is ready.", found.state)).into(),
        );
    }
    // Two changes at once would each start from what the other replaces.
    if db::queue::has_open(
        tx,
        found.id,
        &[TaskKind::Upgrade.as_str(), TaskKind::Provision.as_str()],
    )
    .await?
    {
        return Err(Problem::conflict(
            "Another change of it is under way; wait until it has ended, or cancel it.",
        )
        .into());
    }
    let task = NewTask {
        kind: TaskKind::Upgrade.as_str(),
        instance_id: found.id,
        team_id: found.team_id,
        priority: Priority::Person,
        run_after: None,
        max_attempts: crate::tasks::UPGRADE_ATTEMPTS,
        payload,
        reason,
        requested_by: &actor.name,
    };
    let task = db::queue::enqueue(tx, task).await?;
    let message = format!("{}: {reason}", actor.name);
    let event = NewEvent {
        instance_id: found.id,
        kind: "instance.change",
        actor: &actor.name,
        message: &message,
        task_id: Some(task.id),
    };
    db::event::insert(tx, event).await?;
    Ok(task.id)
}
