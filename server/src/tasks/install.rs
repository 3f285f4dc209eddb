//! Provision (install or repair, at the revision the instance points to), upgrade and rollback (at the revision the task names).

use super::{LOOK_AGAIN, Tasks, event, load_job, unfinished};
use crate::{
    db::{self, queue::Claimed},
    provision::Fault,
    queue::{Attempt, Ending, Stop},
    rollout::{Start, may_start},
};
use serde_json::{Map, Value};
use sqlx::PgConnection;
use svcforge_app::domain::InstanceState;
use uuid::Uuid;

/// What an instance is moved to.
type Target = (Uuid, Map<String, Value>);

/// The target that a task names.
fn target(payload: &Value) -> Option<Target> {
    let id = payload["entry_revision"].as_str()?.parse().ok()?;
    Some((id, payload["parameters"].as_object()?.clone()))
}

/// Installs it and waits until it serves.
pub(super) async fn run(
    tasks: &Tasks,
    attempt: &Attempt,
    moving: InstanceState,
) -> Result<(), Fault> {
    let Some(target) = begin(tasks, attempt, moving).await? else {
        attempt.log("svcforge", "there is nothing to move it to");
        return Ok(());
    };
    let job = load_job(&tasks.pool, attempt.task.instance_id, target).await?;
    let parts = tasks.provisioner.install(&job, attempt).await?;
    let mut tx = tasks.pool.begin().await?;
    if db::queue::hold(&mut tx, attempt.task.id, attempt.task.token).await? {
        db::observed::set_parts(&mut tx, job.instance_id, &parts).await?;
    }
    tx.commit().await?;
    Ok(())
}

/// Asks whether it may start, moves the instance to `provisioning` or `upgrading`, fenced, with its event. None when there is
/// nothing to do; else the target, where the task has one.
async fn begin(
    tasks: &Tasks,
    attempt: &Attempt,
    moving: InstanceState,
) -> Result<Option<Option<Target>>, Fault> {
    let task = &attempt.task;
    let mut tx = tasks.pool.begin().await?;
    let Some(found) = db::instance::lock(&mut tx, task.instance_id).await? else {
        return Err(Fault::Rejected("the instance is gone".into()));
    };
    if !db::queue::hold(&mut tx, task.id, task.token).await? {
        return Err(Fault::Stopped(Stop::LeaseLost));
    }
    if found.state != moving && !found.state.may_become(moving) {
        if matches!(
            found.state,
            InstanceState::Deleting | InstanceState::Deleted
        ) {
            return Err(Fault::Stopped(Stop::Asked(format!(
                "the service is {} now",
                found.state
            ))));
        }
        // Another kind of work is between its attempts: what was asked waits for it, and is not thrown away.
        return Err(Fault::NotYet {
            why: format!("the service is {} now", found.state),
            until: Some(db::now(&mut *tx).await? + LOOK_AGAIN),
        });
    }
    let mut reason = task.reason.clone();
    let target = if task.rollout_type.is_some() {
        match may_start(&mut tx, task).await? {
            Start::Go(revision, parameters, now) => {
                reason = now;
                Some((revision, parameters))
            }
            Start::Nothing => {
                // Whatever target it once named was not installed: the ending must not point the instance there.
                db::queue::clear_payload(&mut tx, task.id, task.token).await?;
                tx.commit().await?;
                return Ok(None);
            }
            Start::NotYet { why, until } => return Err(Fault::NotYet { why, until }),
        }
    } else {
        super::may_go_on(&mut tx, task).await?;
        target(&task.payload)
    };
    if found.state != moving {
        db::instance::move_state(&mut tx, task.instance_id, found.state, moving, None).await?;
        event(
            &mut tx,
            task,
            &format!("state.{moving}"),
            &format!("{}: {reason}", verb(moving)),
        )
        .await?;
    }
    tx.commit().await?;
    Ok(Some(target))
}

fn verb(moving: InstanceState) -> &'static str {
    if moving == InstanceState::Upgrading {
        "Upgrading"
    } else {
        "Installing"
    }
}

/// Writes what the ending means for the instance.
pub(super) async fn conclude(
    tx: &mut PgConnection,
    task: &Claimed,
    ending: &Ending,
    last: bool,
    moving: InstanceState,
) -> sqlx::Result<()> {
    let id = task.instance_id;
    match ending {
        Ending::Done => {
            // An upgrade's target was written when it started: what the claim read is older.
            let payload = db::queue::payload(tx, task.id, task.token).await?;
            if let Some((revision, parameters)) = payload.as_ref().and_then(target) {
                db::instance::repoint(tx, id, revision, &Value::Object(parameters)).await?;
            }
            db::instance::remember_revision(tx, id, task.id).await?;
            // What the last sweep saw of it was before, and what it was held for is not what runs any more.
            db::drift::forget_verdict(tx, id).await?;
            db::drift::end_hold(tx, id).await?;
            if db::instance::move_state(tx, id, moving, InstanceState::Ready, None).await? {
                event(tx, task, "state.ready", "Ready").await?;
            }
            Ok(())
        }
        Ending::Failed(error) | Ending::Hopeless(error) if last => {
            let message = format!(
                "Failed after {} of {} attempts: {error}",
                task.attempt.min(task.max_attempts),
                task.max_attempts
            );
            fail(tx, task, moving, error, &message).await?;
            halt(tx, task, error).await
        }
        Ending::Cancelled(why) => fail(tx, task, moving, why, &format!("Stopped: {why}")).await,
        other => unfinished(tx, task, other).await,
    }
}

/// A final failure halts the type before the slot is free: a bad chart stops after one tenant.
async fn halt(tx: &mut PgConnection, task: &Claimed, error: &str) -> sqlx::Result<()> {
    let Some(service_type) = &task.rollout_type else {
        return Ok(());
    };
    // What never started says nothing about the chart.
    if !db::rollout::has_slot(tx, task.id).await? {
        return Ok(());
    }
    let work = db::instance::load_work(&mut *tx, task.instance_id).await?;
    let reason = format!(
        "the upgrade of {} ({}) failed: {error}",
        work.name, work.team
    );
    if db::rollout::halt(tx, service_type, "svcforge", &reason).await? {
        tracing::warn!(event = "rollout.halted", service_type = %service_type, instance_id = %task.instance_id, reason = %reason);
        event(
            tx,
            task,
            "rollout.halted",
            &format!("The rollout of {service_type} was halted: {reason}"),
        )
        .await?;
        let payload = serde_json::json!({"service_type": service_type, "instance_id": task.instance_id, "team": work.team, "reason": reason});
        db::notification::insert_where_told(tx, "rollout.halted", &payload).await?;
    }
    Ok(())
}

async fn fail(
    tx: &mut PgConnection,
    task: &Claimed,
    moving: InstanceState,
    error: &str,
    message: &str,
) -> sqlx::Result<()> {
    let mut failed = false;
    // It may not have got as far as its first change of state. One that is ready still is: it was never touched.
    for from in [moving, InstanceState::Requested] {
        failed = failed
            || db::instance::move_state(
                tx,
                task.instance_id,
                from,
                InstanceState::Failed,
                Some(error),
            )
            .await?;
    }
    if failed {
        event(tx, task, "state.failed", message).await?;
    } else {
        db::instance::set_error(tx, task.instance_id, error).await?;
        event(tx, task, "task.failed", message).await?;
    }
    Ok(())
}
