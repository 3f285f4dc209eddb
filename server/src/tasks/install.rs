//! Provision (install or repair, at the revision the instance points to) and upgrade (at the revision the task names).

use super::{Tasks, event, load_job, unfinished};
use crate::{
    db::{self, queue::Claimed},
    provision::Fault,
    queue::{Attempt, Ending, Stop},
};
use serde_json::{Map, Value};
use sqlx::PgConnection;
use svcforge_app::domain::InstanceState;
use uuid::Uuid;

/// The target that an upgrade task names.
fn target(payload: &Value) -> Option<(Uuid, Map<String, Value>)> {
    let id = payload["entry_revision"].as_str()?.parse().ok()?;
    Some((id, payload["parameters"].as_object()?.clone()))
}

/// Installs it and waits until it serves.
pub(super) async fn run(
    tasks: &Tasks,
    attempt: &Attempt,
    moving: InstanceState,
) -> Result<(), Fault> {
    begin(tasks, attempt, moving).await?;
    let job = load_job(
        &tasks.pool,
        attempt.task.instance_id,
        target(&attempt.task.payload),
    )
    .await?;
    let parts = tasks.provisioner.install(&job, attempt).await?;
    let mut tx = tasks.pool.begin().await?;
    if db::queue::hold(&mut tx, attempt.task.id, attempt.task.token).await? {
        db::observed::set_parts(&mut tx, job.instance_id, &parts).await?;
    }
    tx.commit().await?;
    Ok(())
}

/// Moves the instance to `provisioning` or `upgrading`, fenced, with its event.
async fn begin(tasks: &Tasks, attempt: &Attempt, moving: InstanceState) -> Result<(), Fault> {
    let task = &attempt.task;
    let mut tx = tasks.pool.begin().await?;
    let Some(found) = db::instance::lock(&mut tx, task.instance_id).await? else {
        return Err(Fault::Rejected("the instance is gone".into()));
    };
    if !db::queue::hold(&mut tx, task.id, task.token).await? {
        return Err(Fault::Stopped(Stop::LeaseLost));
    }
    if found.state == moving {
        return Ok(());
    }
    if !found.state.may_become(moving) {
        return Err(Fault::Stopped(Stop::Asked(format!(
            "the service is {} now",
            found.state
        ))));
    }
    db::instance::move_state(&mut tx, task.instance_id, found.state, moving, None).await?;
    event(
        &mut tx,
        task,
        &format!("state.{moving}"),
        &format!("{}: {}", verb(moving), task.reason),
    )
    .await?;
    tx.commit().await?;
    Ok(())
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
            if let Some((revision, parameters)) = target(&task.payload) {
                db::instance::repoint(tx, id, revision, &Value::Object(parameters)).await?;
            }
            if db::instance::move_state(tx, id, moving, InstanceState::Ready, None).await? {
                event(tx, task, "state.ready", "Ready").await?;
            }
            Ok(())
        }
        Ending::Failed(error) | Ending::Hopeless(error) if last => {
            fail(
                tx,
                task,
                moving,
                error,
                &format!(
                    "Failed after {} of {} attempts: {error}",
                    task.attempt.min(task.max_attempts),
                    task.max_attempts
                ),
            )
            .await
        }
        Ending::Cancelled(why) => fail(tx, task, moving, why, &format!("Stopped: {why}")).await,
        other => unfinished(tx, task, other).await,
    }
}

async fn fail(
    tx: &mut PgConnection,
    task: &Claimed,
    moving: InstanceState,
    error: &str,
    message: &str,
) -> sqlx::Result<()> {
    let mut failed = db::instance::move_state(
        tx,
        task.instance_id,
        moving,
        InstanceState::Failed,
        Some(error),
    )
    .await?;
    if !failed {
        // It never got as far as its first change of state.
        failed = db::instance::move_state(
            tx,
            task.instance_id,
            InstanceState::Requested,
            InstanceState::Failed,
            Some(error),
        )
        .await?;
    }
    if failed {
        event(tx, task, "state.failed", message).await?;
    }
    Ok(())
}
