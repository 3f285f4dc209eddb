//! Removes an instance; it is `deleted` only when nothing is left.

use super::{Tasks, event, load_job, unfinished};
use crate::{
    db::{self, queue::Claimed},
    provision::Fault,
    queue::{Attempt, Ending},
};
use sqlx::PgConnection;
use svcforge_app::domain::InstanceState;

/// Removes it, at the revision it points to: that revision is there even when the catalog has moved on.
pub(super) async fn run(tasks: &Tasks, attempt: &Attempt) -> Result<(), Fault> {
    super::may_go_on(&mut *tasks.pool.acquire().await?, &attempt.task).await?;
    let job = load_job(&tasks.pool, attempt.task.instance_id, None).await?;
    tasks.provisioner.remove(&job, attempt).await
}

/// Writes what the ending means for the instance. A removal that failed for good stays `deleting`, with its fault shown.
pub(super) async fn conclude(
    tx: &mut PgConnection,
    task: &Claimed,
    ending: &Ending,
    last: bool,
) -> sqlx::Result<()> {
    match ending {
        Ending::Done => {
            if db::instance::move_state(
                tx,
                task.instance_id,
                InstanceState::Deleting,
                InstanceState::Deleted,
                None,
            )
            .await?
            {
                db::observed::set_parts(tx, task.instance_id, &[]).await?;
                event(tx, task, "state.deleted", "Removed: nothing of it is left").await?;
            }
            Ok(())
        }
        Ending::Failed(error) | Ending::Hopeless(error) if last => {
            db::instance::set_error(tx, task.instance_id, error).await?;
            event(
                tx,
                task,
                "delete.failed",
                &format!("The removal failed: {error}"),
            )
            .await
        }
        other => unfinished(tx, task, other).await,
    }
}
