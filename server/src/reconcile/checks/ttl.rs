//! Instances at their end, and those that were left `deleting`: one removal each, however slow it is.

use super::super::{CheckError, Context};
use super::BATCH;
use crate::{
    catalog::parse_span,
    db::{
        self,
        event::NewEvent,
        expiry::Due,
        queue::{NewTask, Priority},
    },
    tasks::DEPROVISION_ATTEMPTS,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use std::collections::BTreeMap;
use svcforge_app::domain::{Act, Facts, Ruling, TaskKind, may_act};
use uuid::Uuid;

/// Longest pause between removals that failed for good.
const LONGEST_PAUSE_MIN: i64 = 6 * 60;

/// When the next removal may begin: at once for an expiry (after the entry's grace); with growing pauses once one has failed.
pub fn run_after(due: &Due, now: Timestamp) -> Option<Timestamp> {
    if due.failures > 0 {
        let minutes = 1_i64
            .checked_shl(u32::try_from(due.failures.min(12)).unwrap_or(12))
            .unwrap_or(LONGEST_PAUSE_MIN)
            .min(LONGEST_PAUSE_MIN);
        return Some(now + SignedDuration::from_mins(minutes));
    }
    let grace = due.grace.as_deref().and_then(parse_span).unwrap_or(0);
    (due.state != "deleting" && grace > 0).then(|| now + SignedDuration::from_secs(grace))
}

/// Which of them may be removed now: a pause waits.
fn plan(due: Vec<Due>) -> Vec<Due> {
    due.into_iter()
        .filter(|d| {
            let facts = Facts {
                // What a person removed is not paused: the table speaks of expiry.
                paused: d.paused.clone().filter(|_| d.state != "deleting"),
                ..Facts::default()
            };
            may_act(Act::Expiry, &facts) == Ruling::Go
        })
        .collect()
}

/// Enqueues what is missing.
///
/// # Errors
/// From Postgres, or when another leads.
pub async fn run(cx: &Context) -> Result<(), CheckError> {
    let due = plan(db::expiry::list_due(&cx.pool, 10_000).await?);
    for batch in due.chunks(BATCH) {
        remove(cx, batch).await?;
    }
    Ok(())
}

async fn remove(cx: &Context, batch: &[Due]) -> Result<(), CheckError> {
    let mut tx = cx.leading.begin(&cx.pool).await?;
    let now = db::now(&mut *tx).await?;
    let ids: Vec<Uuid> = batch.iter().map(|d| d.id).collect();
    db::queue::lock_lanes(&mut tx, &ids).await?;
    let moved: std::collections::BTreeSet<Uuid> = db::expiry::begin(&mut tx, &ids)
        .await?
        .into_iter()
        .collect();
    let moved: Vec<&Due> = batch.iter().filter(|d| moved.contains(&d.id)).collect();
    let ids: Vec<Uuid> = moved.iter().map(|d| d.id).collect();
    db::queue::overtake_many(
        &mut tx,
        &ids,
        TaskKind::Deprovision.as_str(),
        "its life is over",
    )
    .await?;
    let reasons: Vec<String> = moved.iter().map(|d| reason(d)).collect();
    let tasks: Vec<NewTask<'_>> = moved
        .iter()
        .zip(&reasons)
        .map(|(d, reason)| NewTask {
            kind: TaskKind::Deprovision.as_str(),
            instance_id: d.id,
            team_id: d.team_id,
            priority: Priority::Deprovision,
            run_after: run_after(d, now),
            max_attempts: DEPROVISION_ATTEMPTS,
            payload: json!({}),
            reason,
            requested_by: "reconciler",
            // What a person removed, or what has begun, is not kept back by a pause.
            act: if d.state == "deleting" {
                Act::Delete
            } else {
                Act::Expiry
            },
            rollout_type: None,
        })
        .collect();
    let created: BTreeMap<Uuid, Uuid> = db::queue::enqueue_many(&mut tx, &tasks)
        .await?
        .into_iter()
        .collect();
    let events: Vec<NewEvent<'_>> = moved
        .iter()
        .zip(&reasons)
        .filter_map(|(d, reason)| {
            Some(NewEvent {
                instance_id: d.id,
                kind: "instance.expired",
                actor: "reconciler",
                message: reason,
                task_id: Some(*created.get(&d.id)?),
            })
        })
        .collect();
    db::event::insert_many(&mut tx, &events).await?;
    tx.commit().await?;
    for due in moved {
        let Some(task_id) = created.get(&due.id) else {
            continue;
        };
        if due.expired {
            tracing::info!(
                event = "ttl.expired",
                instance_id = %due.id,
                team = %due.team,
                expires_at = due.expires_at.map(|t| t.to_jiff().to_string()),
                previous_state = %due.state,
                task_id = %task_id
            );
        } else {
            tracing::info!(event = "removal.resumed", instance_id = %due.id, team = %due.team, task_id = %task_id);
        }
        cx.changes.changed("instance", due.id);
    }
    cx.changes.work();
    Ok(())
}

fn reason(due: &Due) -> String {
    match (due.expired, due.failures) {
        (_, failures @ 1..) => {
            format!("its removal has failed {failures} times; it is tried again")
        }
        (true, _) => format!(
            "it expired at {}",
            due.expires_at
                .map(|t| t.to_jiff().to_string())
                .unwrap_or_default()
        ),
        _ => "it was left half removed".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(state: &str, failures: i64, grace: Option<&str>) -> Due {
        Due {
            id: Uuid::nil(),
            team_id: Uuid::nil(),
            team: "t".into(),
            state: state.into(),
            expires_at: None,
            expired: state != "deleting",
            paused: None,
            failures,
            grace: grace.map(str::to_owned),
        }
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        let now = Timestamp::UNIX_EPOCH;
        let minutes =
            |failures| run_after(&due("deleting", failures, None), now).map(|t| t.as_second() / 60);
        assert_eq!(
            [0, 1, 2, 5, 9, 60].map(minutes),
            [None, Some(2), Some(4), Some(32), Some(360), Some(360)]
        );
        assert_eq!(
            run_after(&due("ready", 0, Some("3600s")), now).map(|t| t.as_second()),
            Some(3600)
        );
        assert_eq!(
            run_after(&due("deleting", 0, Some("3600s")), now),
            None,
            "its grace is over"
        );
        assert_eq!(run_after(&due("ready", 0, Some("0s")), now), None);
    }

    #[test]
    fn a_pause_keeps_what_expires_and_not_what_a_person_removed() {
        let paused = |state| Due {
            paused: Some("paused".into()),
            ..due(state, 0, None)
        };
        assert!(plan(vec![paused("ready")]).is_empty());
        assert_eq!(plan(vec![paused("deleting")]).len(), 1);
    }
}
