//! Pauses (N7): svcforge does nothing there by itself; what people ask goes on.

use super::{Ops, change_instance::reason};
use crate::{
    authz::{Action, Actor, Scope, require},
    db::{self, event::NewEvent, pause::Of},
    error::Error,
};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use svcforge_app::domain::{Instance, Problem};
use uuid::Uuid;

/// A pause to set.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseAsk {
    /// Why.
    pub reason: String,
    /// Until when; until somebody ends it when left out.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
}

/// What a wider pause speaks of: exactly one of them.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WidePause {
    /// A team's slug.
    #[serde(default)]
    pub team: Option<String>,
    /// A service type.
    #[serde(default, rename = "type")]
    pub service_type: Option<String>,
    /// Everything.
    #[serde(default)]
    pub all: bool,
    /// Why; not needed to end one.
    #[serde(default)]
    pub reason: String,
    /// Until when.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
}

/// Pauses one instance, or ends its pause.
///
/// # Errors
/// 404; 422 without a reason or with an end in the past.
pub async fn pause_instance(
    ops: &Ops,
    actor: &Actor,
    id: Uuid,
    ask: Option<PauseAsk>,
) -> Result<Instance, Error> {
    ops.require_on(actor, Action::ChangeInstance, id).await?;
    let mut tx = ops.pool.begin().await?;
    let message = match ask {
        Some(ask) => {
            let (why, until) = checked(&mut tx, &ask.reason, ask.until).await?;
            db::pause::upsert(&mut tx, &Of::Instance(id), &why, &actor.name, until).await?;
            format!("{} paused it{}: {why}", actor.name, words(until))
        }
        None => {
            if !db::pause::end(&mut tx, &Of::Instance(id)).await? {
                return Err(Problem::conflict("It is not paused by itself.").into());
            }
            format!("{} ended its pause", actor.name)
        }
    };
    let event = NewEvent {
        instance_id: id,
        kind: "instance.pause",
        actor: &actor.name,
        message: &message,
        task_id: None,
    };
    db::event::insert(&mut tx, event).await?;
    let detail = json!({"said": message});
    db::audit::insert(
        &mut tx,
        actor,
        "pause.change",
        ("instance", &id.to_string()),
        &detail,
    )
    .await?;
    tx.commit().await?;
    ops.changes.changed("rollout", "pause");
    ops.shown(id).await
}

/// Pauses a team, a type or everything; or ends that pause.
///
/// # Errors
/// 403; 404 for an unknown team; 422 unless it names exactly one, with a reason.
pub async fn pause_wide(ops: &Ops, actor: &Actor, ask: WidePause, end: bool) -> Result<(), Error> {
    require(actor, Action::ManageRollouts, Scope::Platform, "pause")?;
    let of = match (&ask.team, &ask.service_type, ask.all) {
        (Some(slug), None, false) => {
            let team = db::team::find(&ops.pool, slug).await?;
            Of::Team(
                team.ok_or_else(|| Problem::field("/team", format!("{slug:?} is no team")))?
                    .id,
            )
        }
        (None, Some(name), false) => {
            if name == db::rollout::ALL || !db::rollout::exists(&ops.pool, name).await? {
                return Err(Problem::field("/type", format!("{name:?} is no service type")).into());
            }
            Of::Type(name.clone())
        }
        (None, None, true) => Of::All,
        _ => {
            return Err(
                Problem::field("", "name exactly one: `team`, `type`, or `all: true`").into(),
            );
        }
    };
    let mut tx = ops.pool.begin().await?;
    let said = if end {
        if !db::pause::end(&mut tx, &of).await? {
            return Err(Problem::conflict("That is not paused.").into());
        }
        "ended".to_owned()
    } else {
        let (why, until) = checked(&mut tx, &ask.reason, ask.until).await?;
        db::pause::upsert(&mut tx, &of, &why, &actor.name, until).await?;
        format!("paused{}: {why}", words(until))
    };
    let target = ask
        .team
        .or(ask.service_type)
        .unwrap_or_else(|| "all".into());
    let detail = json!({"said": said});
    db::audit::insert(&mut tx, actor, "pause.change", ("pause", &target), &detail).await?;
    tx.commit().await?;
    ops.changes.changed("rollout", "pause");
    Ok(())
}

fn words(until: Option<Timestamp>) -> String {
    until.map_or(String::new(), |t| format!(" until {t}"))
}

async fn checked(
    tx: &mut sqlx::PgConnection,
    why: &str,
    until: Option<Timestamp>,
) -> Result<(String, Option<Timestamp>), Error> {
    let why = reason(why, "/reason")?;
    if until.is_some_and(|at| at.as_second() > i64::from(u32::MAX) * 2) {
        return Err(Problem::field(
            "/until",
            "lies too far in the future; leave it out for no end",
        )
        .into());
    }
    if let Some(at) = until
        && at <= db::now(&mut *tx).await?
    {
        return Err(Problem::field("/until", "lies in the past").into());
    }
    Ok((why, until))
}
