//! What people decide about drift: keep, accept or put back what was changed; ignore or adopt orphans; release the brake.

use super::{Ops, change_instance::reason};
use crate::{
    authz::{Action, Actor, Scope, require},
    db::{
        self,
        event::NewEvent,
        queue::{NewTask, Priority},
    },
    error::Error,
};
use serde::Deserialize;
use serde_json::json;
use svcforge_app::domain::{Act, DriftView, Instance, InstanceState, Problem, TaskKind};
use uuid::Uuid;

/// Rows a drift page shows of each kind.
const SHOWN: i64 = 500;

/// What is done about a change from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftChoice {
    /// Leave it and hold it: the machine does not upgrade it.
    Keep,
    /// Take it for ours: it stands until the next change or upgrade installs what was asked.
    Accept,
    /// Install what svcforge had installed.
    PutBack,
}

/// Does it.
///
/// # Errors
/// 404; 409 unless its release was changed from outside, or is gone.
pub async fn choose_drift(
    ops: &Ops,
    actor: &Actor,
    id: Uuid,
    choice: DriftChoice,
) -> Result<Instance, Error> {
    ops.require_on(actor, Action::ChangeInstance, id).await?;
    let mut tx = ops.pool.begin().await?;
    let found = db::instance::lock(&mut tx, id)
        .await?
        .ok_or_else(|| Problem::not_found("instance"))?;
    let verdict = db::drift::find_verdict(&mut tx, id).await?;
    if found.state != InstanceState::Ready || verdict.is_none() {
        return Err(Problem::conflict("Nothing about it was changed from outside.").into());
    }
    let (message, task) = match choice {
        DriftChoice::Keep => {
            db::drift::acknowledge(&mut tx, id, &actor.name).await?;
            (
                format!("{} keeps the change; it stays held", actor.name),
                None,
            )
        }
        DriftChoice::Accept => {
            if !db::drift::accept(&mut tx, id).await? {
                return Err(Problem::conflict(
                    "There is no changed revision to accept; what somebody replaced can only be put back.",
                )
                .into());
            }
            db::drift::forget(&mut tx, id).await?;
            (format!("{} accepted the change", actor.name), None)
        }
        DriftChoice::PutBack => {
            db::drift::forget(&mut tx, id).await?;
            (
                format!("{} puts it back", actor.name),
                Some(put_back(&mut tx, actor, &found, verdict.as_deref()).await?),
            )
        }
    };
    let event = NewEvent {
        instance_id: id,
        kind: "drift.choice",
        actor: &actor.name,
        message: &message,
        task_id: task,
    };
    db::event::insert(&mut tx, event).await?;
    let detail = json!({"said": message});
    db::audit::insert(
        &mut tx,
        actor,
        "drift.choice",
        ("instance", &id.to_string()),
        &detail,
    )
    .await?;
    tx.commit().await?;
    ops.changes.changed("drift", "choice");
    ops.shown(id).await
}

async fn put_back(
    tx: &mut sqlx::PgConnection,
    actor: &Actor,
    found: &db::instance::Locked,
    verdict: Option<&str>,
) -> Result<Uuid, Error> {
    let kinds = [
        TaskKind::Provision.as_str(),
        TaskKind::Rollback.as_str(),
        TaskKind::Upgrade.as_str(),
    ];
    if db::queue::has_open(tx, found.id, &kinds).await? {
        return Err(Problem::conflict(
            "Another change of it is under way; wait until it has ended.",
        )
        .into());
    }
    let task = NewTask {
        kind: TaskKind::Provision.as_str(),
        instance_id: found.id,
        team_id: found.team_id,
        priority: Priority::Person,
        run_after: None,
        max_attempts: crate::tasks::PROVISION_ATTEMPTS,
        // What somebody put in its place carries no label of ours, and is taken over because a person says so.
        payload: match verdict {
            Some("changed") => json!({"adopt": true}),
            _ => json!({}),
        },
        reason: "put back by a person",
        requested_by: &actor.name,
        act: Act::PersonChange,
        rollout_type: None,
    };
    Ok(db::queue::enqueue(tx, task).await?.id)
}

/// An admin lets the list go that the brake was put on for.
///
/// # Errors
/// 403; 409 when the brake is not on, or keeps back another list than the one that was shown; 422 without a reason.
pub async fn release_brake(ops: &Ops, actor: &Actor, list: &str, why: &str) -> Result<(), Error> {
    require(actor, Action::ManageRollouts, Scope::Platform, "brake")?;
    let why = reason(why, "/reason")?;
    let mut tx = ops.pool.begin().await?;
    if !db::drift::release_brake(&mut tx, list, &actor.name, &why).await? {
        let why = match db::drift::find_brake(&mut *tx).await?.open {
            true => "What it keeps back has changed since the list was shown: look again.",
            false => "The brake is not on.",
        };
        return Err(Problem::conflict(why).into());
    }
    let detail = json!({"reason": why, "list": list});
    db::audit::insert(&mut tx, actor, "brake.release", ("brake", "drift"), &detail).await?;
    tx.commit().await?;
    ops.changes.changed("drift", "brake");
    Ok(())
}

/// Ignores an orphan: from then on it is logged at info.
///
/// # Errors
/// 403; 404; 422 without a reason.
pub async fn ignore_orphan(ops: &Ops, actor: &Actor, id: Uuid, why: &str) -> Result<(), Error> {
    require(actor, Action::ManageRollouts, Scope::Platform, "orphan")?;
    let why = reason(why, "/reason")?;
    let mut tx = ops.pool.begin().await?;
    let (_, release, namespace, _) = db::drift::find_orphan(&mut tx, id)
        .await?
        .ok_or_else(|| Problem::not_found("orphan"))?;
    db::drift::set_orphan(&mut tx, id, "ignored", &actor.name, &why).await?;
    let detail = json!({"release": release, "namespace": namespace, "reason": why});
    db::audit::insert(
        &mut tx,
        actor,
        "orphan.ignore",
        ("orphan", &id.to_string()),
        &detail,
    )
    .await?;
    tx.commit().await?;
    ops.changes.changed("drift", "orphans");
    Ok(())
}

/// Everything that is not as it should be: instances of the actor's teams; the rest for admins.
///
/// # Errors
/// From Postgres.
pub async fn drift_view(ops: &Ops, actor: &Actor) -> Result<DriftView, Error> {
    let pool = &ops.pool;
    let mut view = DriftView {
        breaker: db::drift::find_brake(pool).await?,
        ..DriftView::default()
    };
    (view.swept_at, view.sweep_error) = db::drift::find_sweep(pool).await?;
    for (verdict, item) in
        db::drift::list_items(pool, actor.visible_teams().as_deref(), SHOWN).await?
    {
        match verdict.as_str() {
            "gone" => view.gone.push(item),
            "changed" => view.changed.push(item),
            _ => view.unknown.push(item),
        }
    }
    view.leftovers = db::leftover::list(pool, actor.visible_teams().as_deref(), SHOWN).await?;
    if actor.admin {
        for (kind, orphan) in db::drift::list_orphans(pool, SHOWN).await? {
            match kind.as_str() {
                "foreign" => view.foreign.push(orphan),
                "unmanaged" => view.unmanaged.push(orphan),
                _ => view.orphans.push(orphan),
            }
        }
    }
    Ok(view)
}
