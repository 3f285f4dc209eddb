//! Halting cancels nothing that runs and starts nothing that waits; resuming lets in one slot at a time. Both want a reason.

use super::{Ops, change_instance::reason};
use crate::{
    authz::{Action, Actor, Scope, allows, require},
    db::{self, rollout::ALL},
    error::Error,
};
use serde_json::json;
use sqlx::PgPool;
use svcforge_app::domain::{
    Problem, Rollout, RolloutsView, VersionCount, WaitingUpgrade, standing::explain,
};

/// Outdated instances a rollout shows.
const SHOWN: i64 = 200;

/// Halts a type, or everything. Halting what is halted keeps the older reason.
///
/// # Errors
/// 403; 404 for a type without a rollout; 422 without a reason.
pub async fn halt(ops: &Ops, actor: &Actor, of: Option<&str>, why: &str) -> Result<(), Error> {
    turn(ops, actor, of, why, true).await
}

/// Resumes a type, or everything. Resuming what is not halted changes nothing.
///
/// # Errors
/// 403; 404 for a type without a rollout; 422 without a reason.
pub async fn resume(ops: &Ops, actor: &Actor, of: Option<&str>, why: &str) -> Result<(), Error> {
    turn(ops, actor, of, why, false).await
}

async fn turn(
    ops: &Ops,
    actor: &Actor,
    of: Option<&str>,
    why: &str,
    to_halt: bool,
) -> Result<(), Error> {
    require(actor, Action::ManageRollouts, Scope::Platform, "rollout")?;
    let why = reason(why, "/reason")?;
    let of = of.unwrap_or(ALL);
    let mut tx = ops.pool.begin().await?;
    if !db::rollout::exists(&mut *tx, of).await? {
        return Err(Problem::not_found("rollout").into());
    }
    let done = if to_halt {
        db::rollout::halt(&mut tx, of, &actor.name, &why).await?
    } else {
        db::rollout::resume(&mut tx, of, &actor.name, &why).await?
    };
    let action = if to_halt {
        "rollout.halt"
    } else {
        "rollout.resume"
    };
    let detail = json!({"reason": why, "changed": done});
    db::audit::insert(&mut tx, actor, action, ("rollout", of), &detail).await?;
    tx.commit().await?;
    tracing::info!(event = action, service_type = of, by = %actor.name, reason = %why);
    ops.changes.changed("rollout", of);
    ops.changes.work();
    Ok(())
}

/// Every rollout, as the actor may see it: instances of other teams are counted, not named.
///
/// # Errors
/// From Postgres.
pub async fn rollouts(ops: &Ops, actor: &Actor, only: Option<&str>) -> Result<RolloutsView, Error> {
    require(actor, Action::ViewCatalog, Scope::Platform, "rollout")?;
    let versions = db::rollout::versions(&ops.pool, only).await?;
    let mut items = vec![];
    for row in db::rollout::list(&ops.pool).await? {
        if only.is_some_and(|o| o != row.service_type) {
            continue;
        }
        let versions = versions
            .get(&row.service_type)
            .map(|of| {
                of.iter()
                    .map(|(version, count)| VersionCount {
                        version: version.clone(),
                        count: *count,
                    })
                    .collect()
            })
            .unwrap_or_default();
        items.push(Rollout {
            waiting: waiting(&ops.pool, actor, &row.service_type, &ops.own_team).await?,
            service_type: row.service_type,
            target_version: row.current_version,
            state: row.rollout_state,
            reason: row.reason,
            by: row.changed_by,
            since: row.since.to_jiff(),
            versions,
            in_flight: row.taken,
            max_in_flight: row.max_in_flight,
        });
    }
    if let (Some(_), true) = (only, items.is_empty()) {
        return Err(Problem::not_found("rollout").into());
    }
    Ok(RolloutsView {
        items,
        halted: db::rollout::find_halt_of_all(&ops.pool).await?,
        pauses: db::pause::list(&ops.pool, actor.visible_teams().as_deref(), None).await?,
    })
}

async fn waiting(
    pool: &PgPool,
    actor: &Actor,
    service_type: &str,
    own_team: &str,
) -> Result<Vec<WaitingUpgrade>, Error> {
    let rows = db::standing::outdated(pool, service_type, own_team, SHOWN).await?;
    Ok(rows
        .iter()
        .zip(0..)
        .filter(|(row, _)| {
            allows(
                actor,
                Action::ViewInstance,
                Scope::Team(svcforge_app::domain::TeamId(row.team_id)),
            )
        })
        .map(|(row, ahead)| {
            let said = explain(&row.standing(Some(ahead)));
            WaitingUpgrade {
                instance: svcforge_app::domain::InstanceId(row.instance_id),
                name: row.name.clone(),
                team: row.team.clone(),
                why: said.why.unwrap_or_default(),
                next_at: said.next_at,
            }
        })
        .collect())
}
