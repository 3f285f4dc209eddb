//! Admission: lets due upgrades out of `gated` into their lanes, as many as there are free slots, in their order.

use crate::{
    changes::Changes,
    db::{
        self,
        queue::{admit, keep_gated, lock_lanes},
        rollout::Gate,
        standing::Row,
    },
};
use jiff::Timestamp;
use sqlx::PgPool;
use std::{collections::BTreeMap, time::Duration};
use svcforge_app::domain::{Act, Ruling, obstacles};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// What is to be done with gated tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Task and instance: into their lanes.
    pub admit: Vec<(Uuid, Uuid)>,
    /// Task, why not, and until when if only the window is in the way.
    pub keep: Vec<(Uuid, String, Option<Timestamp>)>,
}

/// Decides over what is gated, in its order; `gates` are the rollouts as they are.
pub fn plan(gated: &[Row], gates: &BTreeMap<String, Gate>) -> Plan {
    let mut free: BTreeMap<&str, i64> = gates
        .iter()
        .map(|(t, g)| (t.as_str(), i64::from(g.max_in_flight) - g.taken))
        .collect();
    let mut plan = Plan::default();
    for row in gated {
        let (Some(task), Some(service_type)) = (row.task_id, row.rollout_type.as_deref()) else {
            continue;
        };
        // Its entry has left the catalog: there is nothing to wait for, and its claim ends it.
        if row.target_id.is_none() {
            plan.admit.push((task, row.instance_id));
            continue;
        }
        let act = row
            .act
            .as_deref()
            .and_then(Act::parse)
            .unwrap_or(Act::Upgrade);
        let gate = gates.get(service_type);
        let mut facts = super::gate::facts(row, act, gate);
        // Started before: it holds its slot between its attempts.
        let started = row.slot_since.is_some();
        let left = free.entry(service_type).or_insert(0);
        if !started && *left <= 0 {
            facts.full = gate.map(|g| {
                format!(
                    "every slot is taken ({} of {})",
                    g.taken.max(g.in_flight),
                    g.max_in_flight
                )
            });
        }
        // A person's upgrade that was taken before the halt waits for its end; it is not thrown away.
        match &obstacles(act, &facts)[..] {
            [] | [Ruling::Go | Ruling::Warn(_)] => {
                plan.admit.push((task, row.instance_id));
                if !started {
                    *left -= 1;
                }
            }
            [
                only @ Ruling::Wait {
                    why,
                    until: Some(until),
                },
            ] if facts.pinned.is_none() => {
                let _ = only;
                plan.keep.push((task, why.clone(), Some(*until)));
            }
            many => {
                let words: Vec<&str> = many
                    .iter()
                    .filter_map(|r| match r {
                        Ruling::Wait { why, .. } | Ruling::Refuse(why) | Ruling::Warn(why) => {
                            Some(why.as_str())
                        }
                        Ruling::Go => None,
                    })
                    .collect();
                plan.keep.push((task, words.join(" · "), None));
            }
        }
    }
    plan
}

/// Admits what may be. Returns how many were.
///
/// # Errors
/// From Postgres.
pub async fn admit_once(pool: &PgPool) -> sqlx::Result<usize> {
    let gated = db::standing::gated(pool).await?;
    if gated.is_empty() {
        return Ok(0);
    }
    let types: Vec<String> = gated
        .iter()
        .filter_map(|r| r.rollout_type.clone())
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    let mut tx = pool.begin().await?;
    let lanes: Vec<Uuid> = gated.iter().map(|r| r.instance_id).collect();
    lock_lanes(&mut tx, &lanes).await?;
    let gates = db::rollout::lock(&mut tx, &types).await?;
    let plan = plan(&gated, &gates);
    let (tasks, instances): (Vec<Uuid>, Vec<Uuid>) = plan.admit.iter().copied().unzip();
    if !tasks.is_empty() {
        admit(&mut tx, &tasks, &instances).await?;
    }
    if !plan.keep.is_empty() {
        keep_gated(&mut tx, &plan.keep).await?;
    }
    tx.commit().await?;
    Ok(tasks.len())
}

/// Admits at every end of an upgrade, resume or change of a rollout, and by itself after `pause`.
pub async fn admit_forever(
    pool: PgPool,
    changes: Changes,
    mut told: broadcast::Receiver<Option<String>>,
    pause: Duration,
    stop: CancellationToken,
) {
    loop {
        match admit_once(&pool).await {
            Ok(0) => {}
            Ok(_) => changes.work(),
            Err(error) => tracing::warn!(event = "admit.failed", %error),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = told_of_rollout(&mut told) => while told.try_recv().is_ok() {},
            () = tokio::time::sleep(pause.mul_f64(0.75 + crate::ids::jitter() / 2.0)) => {}
        }
    }
}

/// Waits for a message about a rollout.
pub async fn told_of_rollout(told: &mut broadcast::Receiver<Option<String>>) {
    loop {
        match told.recv().await {
            Ok(Some(message))
                if message.starts_with("rollout:") || message.starts_with("catalog:") =>
            {
                return;
            }
            Ok(None) | Err(broadcast::error::RecvError::Lagged(_)) => return,
            Ok(Some(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}
