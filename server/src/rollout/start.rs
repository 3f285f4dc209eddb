//! The second gate: asked when an upgrade is claimed, in the transaction that gives it its slot.

use crate::{
    db::{self, queue::Claimed},
    provision::Fault,
};
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use svcforge_app::domain::{Act, Ruling, may_act, parameters};
use uuid::Uuid;

/// What the gate says.
#[derive(Clone, Debug)]
pub enum Start {
    /// To that revision with those parameters; and why, in words of the moment.
    Go(Uuid, Map<String, Value>, String),
    /// It runs the target already.
    Nothing,
    /// Not yet.
    NotYet {
        /// Why.
        why: String,
        /// Not before.
        until: Option<jiff::Timestamp>,
    },
}

/// Asks. The lane must be locked and the task held; takes the rollout's lock and, when it may start, the slot. Until the transaction
/// has committed no halt can pass by.
///
/// # Errors
/// [`Fault::Rejected`] when its parameters do not fit the target's schema, or when what it had begun has nowhere to go on to; else from
/// Postgres.
pub async fn may_start(tx: &mut PgConnection, task: &Claimed) -> Result<Start, Fault> {
    let Some(service_type) = task.rollout_type.clone() else {
        return Err(Fault::Rejected("it is no rollout".into()));
    };
    let gates = db::rollout::lock(tx, std::slice::from_ref(&service_type)).await?;
    let Some(row) = db::standing::of(&mut *tx, &[task.instance_id]).await?.pop() else {
        return Err(Fault::Rejected("the instance is gone".into()));
    };
    let act = task
        .act
        .as_deref()
        .and_then(Act::parse)
        .unwrap_or(Act::Upgrade);
    let under_way = row.state == "upgrading";
    let Some(target) = row.target_id else {
        if under_way {
            return Err(Fault::Rejected(format!(
                "{service_type} has left the catalog, and an upgrade of it was under way: what runs may be of either version"
            )));
        }
        // Its entry has left the catalog: there is nothing to move to, and nobody to blame.
        return Ok(Start::Nothing);
    };
    if target == row.entry_revision_id && row.state == "ready" {
        return Ok(Start::Nothing);
    }
    let gate = gates.get(&service_type);
    let mut facts = super::gate::facts(&row, act, gate);
    let started = row.slot_since.is_some();
    if let Some(gate) = gate
        && !started
        && gate.in_flight >= i64::from(gate.max_in_flight)
    {
        facts.full = Some(format!(
            "every slot is taken ({} of {})",
            gate.in_flight, gate.max_in_flight
        ));
    }
    match may_act(act, &facts) {
        Ruling::Go | Ruling::Warn(_) => {}
        Ruling::Wait { why, until } => {
            // Only a window's end is known for sure; a pin may be taken off.
            let until = until.filter(|_| facts.pinned.is_none());
            return Ok(Start::NotYet { why, until });
        }
        Ruling::Refuse(why) => return Ok(Start::NotYet { why, until: None }),
    }
    let work = db::instance::load_work(&mut *tx, task.instance_id).await?;
    let (revision, _) = db::catalog::load(&mut *tx, target).await?;
    let full = match parameters::check(&revision.entry.parameters, &work.parameters) {
        Ok(full) => full,
        Err(errors) => {
            let words: Vec<String> = errors
                .iter()
                .map(|e| format!("{} {}", e.pointer, e.detail))
                .collect();
            let why = format!(
                "its parameters do not fit {service_type} {}: {}",
                revision.entry.chart_version,
                words.join("; ")
            );
            if under_way {
                return Err(Fault::Rejected(format!(
                    "{why}; an upgrade was under way: what runs may be of either version"
                )));
            }
            if act != Act::Upgrade {
                return Err(Fault::Rejected(why));
            }
            // That instance's problem, not the chart's: it is held, and the others go on.
            db::instance::hold_version(tx, task.instance_id, &why).await?;
            return Ok(Start::Nothing);
        }
    };
    // Judged by the catalog of the moment: a target that moved while it waited is not installed on the way.
    let payload = json!({"entry_revision": target, "parameters": full});
    let reason = match act {
        Act::Upgrade => format!(
            "upgrade from {} to {}",
            row.chart_version, revision.entry.chart_version
        ),
        _ => task.reason.clone(),
    };
    if !db::rollout::take_slot(tx, task.id, task.token, &payload, &reason).await? {
        return Err(Fault::Stopped(crate::queue::Stop::LeaseLost));
    }
    Ok(Start::Go(target, full, reason))
}
