//! The day-2 rollout, one service type at a time: who is behind the catalog, and may start or be parked for its window.

use super::super::{CheckError, Context};
use super::BATCH;
use crate::{
    catalog::Entry,
    db::{
        self,
        event::NewEvent,
        queue::{NewTask, Priority},
        rollout::Row as Type,
        standing::Row,
    },
    notify::Note,
    rollout::{admit_once, must_halt},
    tasks::UPGRADE_ATTEMPTS,
};
use jiff::Timestamp;
use serde_json::json;
use std::collections::BTreeMap;
use svcforge_app::domain::{Act, Ruling, TaskKind, Window, obstacles};
use uuid::Uuid;

/// An upgrade to schedule.
#[derive(Clone, Debug)]
pub struct Scheduled<'a> {
    /// Whose.
    pub row: &'a Row,
    /// Not before; now when none.
    pub run_after: Option<Timestamp>,
}

/// What is to be scheduled, and whose window cannot be read. `free` are the slots of each type; types that are missing there are halted.
pub fn plan<'a>(
    candidates: &'a [Row],
    free: &mut BTreeMap<String, i64>,
) -> (Vec<Scheduled<'a>>, Vec<(&'a Row, String)>) {
    let (mut scheduled, mut unreadable) = (vec![], vec![]);
    for row in candidates {
        // Read first: one that cannot be read is that instance's problem, and no security upgrade's excuse.
        if let Some(text) = &row.maintenance_window
            && let Err(why) = Window::parse(text)
        {
            unreadable.push((row, why));
            continue;
        }
        let Some(free) = free.get_mut(&row.service_type) else {
            continue;
        };
        let facts = row.facts();
        match &obstacles(Act::Upgrade, &facts)[..] {
            [] if *free > 0 => {
                *free -= 1;
                scheduled.push(Scheduled {
                    row,
                    run_after: None,
                });
            }
            // Parked for its window: takes no slot, and hides nobody behind it.
            [
                Ruling::Wait {
                    until: Some(until), ..
                },
            ] if facts.pinned.is_none() => scheduled.push(Scheduled {
                row,
                run_after: Some(*until),
            }),
            _ => {}
        }
    }
    (scheduled, unreadable)
}

/// Decides of new targets, lets in what waits, schedules what is missing.
///
/// # Errors
/// From Postgres, or when another leads.
pub async fn run(cx: &Context) -> Result<(), CheckError> {
    let types = settle_targets(cx).await?;
    let security: Vec<String> = types
        .iter()
        .filter(|(_, entry)| entry.as_ref().is_some_and(|e| e.security))
        .map(|(t, _)| t.service_type.clone())
        .collect();
    if !security.is_empty() {
        bring_forward(cx, &security).await?;
    }
    admit(cx).await?;
    let mut free: BTreeMap<String, i64> = db::rollout::list(&cx.pool)
        .await?
        .into_iter()
        .filter(|t| !t.halted())
        .map(|t| {
            let left = i64::from(t.max_in_flight) - t.taken;
            (t.service_type, left)
        })
        .collect();
    let candidates = db::standing::candidates(&cx.pool, &cx.rules.own_team).await?;
    let (scheduled, unreadable) = plan(&candidates, &mut free);
    for (row, why) in unreadable {
        tracing::error!(
            event = "upgrade.bad_window",
            instance_id = %row.instance_id,
            team = %row.team,
            maintenance_window = row.maintenance_window,
            error = %format!("the window {why}")
        );
    }
    for batch in scheduled.chunks(BATCH) {
        schedule(cx, batch).await?;
    }
    if !scheduled.is_empty() {
        admit(cx).await?;
    }
    Ok(())
}

async fn admit(cx: &Context) -> Result<(), CheckError> {
    if admit_once(&cx.pool).await? > 0 {
        cx.changes.work();
    }
    Ok(())
}

fn entry_of(row: &Type) -> Option<Entry> {
    serde_json::from_value(row.spec.clone()?).ok()
}

/// Keeps each type's target and cap; a target that some must not be moved to without a person halts its type, once.
async fn settle_targets(cx: &Context) -> Result<Vec<(Type, Option<Entry>)>, CheckError> {
    let types: Vec<(Type, Option<Entry>)> = db::rollout::list(&cx.pool)
        .await?
        .into_iter()
        .map(|row| {
            let entry = entry_of(&row);
            (row, entry)
        })
        .collect();
    let cap = |entry: &Entry| {
        entry
            .max_in_flight
            .and_then(|n| i32::try_from(n).ok())
            .unwrap_or(cx.rules.max_in_flight)
    };
    let stale: Vec<_> = types
        .iter()
        .filter_map(|(row, entry)| Some((row, entry.as_ref()?)))
        .filter(|(row, entry)| {
            row.target_revision_id != row.current_id || row.max_in_flight != cap(entry)
        })
        .collect();
    if stale.is_empty() {
        return Ok(types);
    }
    let versions = db::rollout::versions(&cx.pool, None).await?;
    let (mut halted, mut moved) = (vec![], vec![]);
    let mut tx = cx.leading.begin(&cx.pool).await?;
    for (row, entry) in stale {
        let Some(current) = row.current_id else {
            continue;
        };
        let of = &row.service_type;
        db::rollout::set_target(&mut tx, of, current, cap(entry)).await?;
        if row.target_revision_id == Some(current) {
            continue;
        }
        moved.push((of.clone(), entry.chart_version.clone()));
        let running = versions.get(of).map(Vec::as_slice).unwrap_or_default();
        let Some(why) = must_halt(entry, running) else {
            continue;
        };
        if db::rollout::halt(&mut tx, of, "svcforge", &why).await? {
            halted.push((of.clone(), why));
        } else {
            db::rollout::add_reason(&mut tx, of, &why).await?;
        }
    }
    tx.commit().await?;
    for (of, version) in moved {
        let mut tx = cx.leading.begin(&cx.pool).await?;
        db::rollout::retell(&mut tx, &of, &version).await?;
        tx.commit().await?;
    }
    for (service_type, reason) in halted {
        tracing::warn!(event = "rollout.halted", service_type = %service_type, reason = %reason);
        cx.changes.changed("rollout", &service_type);
        let note = Note {
            kind: "rollout.halted",
            instance_id: None,
            team: None,
            data: json!({"service_type": service_type, "reason": reason}),
        };
        crate::notify::tell(&*cx.notifier, &[note]).await;
    }
    Ok(types)
}

/// A security upgrade does not wait for the window it was parked for; one that cannot be read keeps it out all the same.
async fn bring_forward(cx: &Context, types: &[String]) -> Result<(), CheckError> {
    let parked: Vec<(Uuid, Uuid, String)> = db::rollout::parked_by_window(&cx.pool, types)
        .await?
        .into_iter()
        .filter(|(_, _, window)| Window::parse(window).is_ok())
        .collect();
    for batch in parked.chunks(BATCH) {
        let (tasks, instances): (Vec<Uuid>, Vec<Uuid>) =
            batch.iter().map(|(t, i, _)| (*t, *i)).unzip();
        let mut tx = cx.leading.begin(&cx.pool).await?;
        db::queue::lock_lanes(&mut tx, &instances).await?;
        db::rollout::bring_forward(&mut tx, &tasks).await?;
        tx.commit().await?;
    }
    Ok(())
}

async fn schedule(cx: &Context, batch: &[Scheduled<'_>]) -> Result<(), CheckError> {
    let reasons: Vec<String> = batch
        .iter()
        .map(|s| {
            format!(
                "upgrade from {} to {}",
                s.row.chart_version,
                s.row.target_version.as_deref().unwrap_or_default()
            )
        })
        .collect();
    let tasks: Vec<NewTask<'_>> = batch
        .iter()
        .zip(&reasons)
        .map(|(s, reason)| NewTask {
            kind: TaskKind::Upgrade.as_str(),
            instance_id: s.row.instance_id,
            team_id: s.row.team_id,
            priority: if s.row.security {
                Priority::Security
            } else {
                Priority::Upgrade
            },
            run_after: s.run_after,
            max_attempts: UPGRADE_ATTEMPTS,
            payload: json!({}),
            reason,
            requested_by: "reconciler",
            act: Act::Upgrade,
            rollout_type: Some(&s.row.service_type),
        })
        .collect();
    let mut tx = cx.leading.begin(&cx.pool).await?;
    let now = db::now(&mut *tx).await?;
    let created: BTreeMap<Uuid, Uuid> = db::queue::enqueue_many(&mut tx, &tasks)
        .await?
        .into_iter()
        .collect();
    let messages: Vec<String> = batch
        .iter()
        .zip(&reasons)
        .map(|(s, reason)| match s.run_after {
            Some(at) => format!("Scheduled for its window at {at}: {reason}"),
            None => format!("Scheduled: {reason}"),
        })
        .collect();
    let events: Vec<NewEvent<'_>> = batch
        .iter()
        .zip(&messages)
        .filter_map(|(s, message)| {
            Some(NewEvent {
                instance_id: s.row.instance_id,
                kind: "upgrade.scheduled",
                actor: "reconciler",
                message,
                task_id: Some(*created.get(&s.row.instance_id)?),
            })
        })
        .collect();
    db::event::insert_many(&mut tx, &events).await?;
    tx.commit().await?;
    for s in batch {
        let Some(task_id) = created.get(&s.row.instance_id) else {
            continue;
        };
        tracing::info!(
            event = "upgrade.scheduled",
            instance_id = %s.row.instance_id,
            team = %s.row.team,
            service_type = %s.row.service_type,
            from_version = %s.row.chart_version,
            to_version = s.row.target_version,
            run_after = %s.run_after.unwrap_or(now),
            security = s.row.security,
            task_id = %task_id
        );
        cx.changes.changed("instance", s.row.instance_id);
    }
    Ok(())
}
