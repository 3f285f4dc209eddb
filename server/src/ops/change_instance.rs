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
use std::collections::BTreeSet;
use svcforge_app::domain::{
    Act, Facts, Instance, InstanceState, Problem, Ruling, Task, TaskKind, Window, may_act,
    parameters,
};
use uuid::Uuid;

/// What to change; what is left out stays.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// What to change of them, by the schema of the revision it runs; what is left out stays as it is.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// Whether they are all there are: what is left out goes. Forms say so, which show all.
    #[serde(skip)]
    pub replace: bool,
    /// When it is removed by itself; null for never.
    #[serde(default, with = "present")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Option<Timestamp>>,
    /// When the machine may upgrade it; null for always.
    #[serde(default, with = "present")]
    #[schema(value_type = Option<String>)]
    pub maintenance_window: Option<Option<String>>,
    /// Keeps it at its version until then; null to let it go.
    #[serde(default, with = "present")]
    #[schema(value_type = Option<PinAsk>)]
    pub pin: Option<Option<PinAsk>>,
}

/// A pin to set.
#[derive(Clone, Debug, Deserialize, serde::Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinAsk {
    /// It ends by itself: within a year.
    #[schema(value_type = String, format = DateTime)]
    pub until: Timestamp,
    /// Why.
    pub reason: String,
}

/// Longest pin, seconds.
const LONGEST_PIN: i64 = 366 * 86_400;
/// Longest reason, characters.
pub(super) const LONGEST_REASON: usize = 500;

/// A reason, as every halt, pause and pin wants one.
pub(super) fn reason(text: &str, pointer: &str) -> Result<String, Problem> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Problem::field(
            pointer,
            "is required: say why, for whoever reads it at night",
        ));
    }
    if text.chars().count() > LONGEST_REASON {
        return Err(Problem::field(
            pointer,
            format!("must have at most {LONGEST_REASON} characters"),
        ));
    }
    Ok(text.to_owned())
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
    if change.maintenance_window.is_some() || change.pin.is_some() {
        if matches!(
            found.state,
            InstanceState::Deleting | InstanceState::Deleted
        ) {
            return Err(Problem::conflict(format!("It is {}.", found.state)).into());
        }
        if let Some(window) = &change.maintenance_window {
            set_window(&mut tx, actor, id, window.as_deref()).await?;
        }
        if let Some(pin) = &change.pin {
            set_pin(&mut tx, actor, id, pin.as_ref()).await?;
        }
    }
    let mut set = Value::Null;
    if let Some(given) = &change.parameters {
        let old = db::instance::load_work(&mut *tx, id).await?.parameters;
        let mut merged = if change.replace {
            Map::new()
        } else {
            old.clone()
        };
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
            None,
        )
        .await?;
        db::instance::touch(&mut tx, id).await?;
        set = changed_parameters(&old, &full);
    }
    let detail = json!({"parameters": set, "expires_at": change.expires_at,
               "maintenance_window": change.maintenance_window, "pin": change.pin});
    db::audit::insert(
        &mut tx,
        actor,
        "instance.change",
        ("instance", &id.to_string()),
        &detail,
    )
    .await?;
    tx.commit().await?;
    ops.changes.changed("rollout", "window");
    ops.shown(id).await
}

/// What differs, for the record: `{name: {from, to}}`. Parameters hold no secrets (`x-secret` is refused at load).
fn changed_parameters(old: &Map<String, Value>, new: &Map<String, Value>) -> Value {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differing = names.into_iter().filter(|n| old.get(*n) != new.get(*n));
    differing
        .map(|n| (n.clone(), json!({"from": old.get(n), "to": new.get(n)})))
        .collect::<Map<_, _>>()
        .into()
}

/// Gives an instance its entry's default time again, from now; its longest where it has no default.
///
/// # Errors
/// 404; 409 when it never expires, or is being removed.
pub async fn extend_instance(ops: &Ops, actor: &Actor, id: Uuid) -> Result<Instance, Error> {
    ops.require_on(actor, Action::ChangeInstance, id).await?;
    let mut tx = ops.pool.begin().await?;
    let found = db::instance::lock(&mut tx, id)
        .await?
        .ok_or_else(|| Problem::not_found("instance"))?;
    if matches!(
        found.state,
        InstanceState::Deleting | InstanceState::Deleted
    ) {
        return Err(Problem::conflict(format!("It is {}.", found.state)).into());
    }
    let (revision, _) = db::catalog::load(&mut *tx, found.entry_revision_id).await?;
    let span = revision
        .entry
        .ttl
        .default
        .or(revision.entry.ttl.max)
        .ok_or_else(|| {
            Problem::conflict("Its entry gives no time to live; set `expires_at` by PATCH instead.")
        })?;
    let at = db::now(&mut *tx).await? + jiff::SignedDuration::from_secs(span.0);
    db::instance::set_expiry(&mut tx, id, Some(at)).await?;
    let message = format!("Extended: it now expires at {at}");
    let event = NewEvent {
        instance_id: id,
        kind: "instance.expiry",
        actor: &actor.name,
        message: &message,
        task_id: None,
    };
    db::event::insert(&mut tx, event).await?;
    let detail = json!({"expires_at": at});
    db::audit::insert(
        &mut tx,
        actor,
        "instance.extend",
        ("instance", &id.to_string()),
        &detail,
    )
    .await?;
    tx.commit().await?;
    ops.shown(id).await
}

async fn set_window(
    tx: &mut sqlx::PgConnection,
    actor: &Actor,
    id: Uuid,
    window: Option<&str>,
) -> Result<(), Error> {
    let window = window.map(str::trim);
    if let Some(Err(why)) = window.map(Window::parse) {
        return Err(Problem::field("/maintenance_window", why).into());
    }
    db::instance::set_window(tx, id, window).await?;
    let message = window.map_or("The machine may upgrade it at any time".into(), |w| {
        format!("The machine may upgrade it only within {w}")
    });
    let event = NewEvent {
        instance_id: id,
        kind: "instance.window",
        actor: &actor.name,
        message: &message,
        task_id: None,
    };
    Ok(db::event::insert(tx, event).await?)
}

async fn set_pin(
    tx: &mut sqlx::PgConnection,
    actor: &Actor,
    id: Uuid,
    pin: Option<&PinAsk>,
) -> Result<(), Error> {
    let now = db::now(&mut *tx).await?;
    let message = match pin {
        None => {
            db::instance::set_pin(tx, id, None).await?;
            "It is not pinned any more".to_owned()
        }
        Some(pin) => {
            let why = reason(&pin.reason, "/pin/reason")?;
            if pin.until <= now || pin.until > now + jiff::SignedDuration::from_secs(LONGEST_PIN) {
                return Err(
                    Problem::field("/pin/until", "must lie in the future, within a year").into(),
                );
            }
            db::instance::set_pin(tx, id, Some((pin.until, &why, &actor.name))).await?;
            format!("Pinned to its version until {}: {why}", pin.until)
        }
    };
    let event = NewEvent {
        instance_id: id,
        kind: "instance.pin",
        actor: &actor.name,
        message: &message,
        task_id: None,
    };
    Ok(db::event::insert(tx, event).await?)
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
    // Asking for it is to say otherwise: its hold ends. A pin is somebody's word, and stands.
    if let Some(row) = db::standing::of(&mut *tx, &[id]).await?.pop() {
        let facts = row.facts();
        if row.hold_kind.as_deref() == Some("rollback") {
            db::instance::end_hold(&mut tx, id).await?;
        }
        let asked = Facts {
            held: facts
                .held
                .clone()
                .filter(|_| row.hold_kind.as_deref() != Some("rollback")),
            ..facts
        };
        if let Ruling::Refuse(why) = may_act(Act::PersonUpgrade, &asked) {
            return Err(Problem::conflict(format!("It cannot be upgraded now: {why}.")).into());
        }
    }
    let payload = json!({"entry_revision": target.id, "parameters": full});
    let reason = format!(
        "upgrade to {} asked by a person",
        target.entry.chart_version
    );
    let task = enqueue_upgrade(
        &mut tx,
        actor,
        &found,
        payload,
        &reason,
        Some(&work.service_type),
    )
    .await?;
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
    rollout_type: Option<&str>,
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
        &[
            TaskKind::Upgrade.as_str(),
            TaskKind::Provision.as_str(),
            TaskKind::Rollback.as_str(),
        ],
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
        act: if rollout_type.is_some() {
            Act::PersonUpgrade
        } else {
            Act::PersonChange
        },
        rollout_type,
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
