//! Tasks that are not wanted any more.

use super::lanes::{lock_lanes, promote};
use sqlx::PgConnection;
use uuid::Uuid;

/// Cancels what waits for an instance, except tasks of kind `except`, and asks what runs to stop. Locks the lane.
///
/// # Errors
/// From Postgres.
pub async fn overtake(
    db: &mut PgConnection,
    instance: Uuid,
    except: &str,
    reason: &str,
) -> sqlx::Result<()> {
    overtake_many(db, &[instance], except, reason).await
}

/// As [`overtake`], for many. Locks the lanes.
///
/// # Errors
/// From Postgres.
pub async fn overtake_many(
    db: &mut PgConnection,
    instances: &[Uuid],
    except: &str,
    reason: &str,
) -> sqlx::Result<()> {
    lock_lanes(db, instances).await?;
    sqlx::query!(
        "with gone as (delete from task where instance_id = any($1) and kind <> $2 and state <> 'running' returning *)
         insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason,
                                   requested_by, traceparent, error, created_at, started_at, finished_at)
         select id, kind, instance_id, team_id, 'cancelled', run_after, attempt, max_attempts, payload, reason,
                requested_by, traceparent, $3, created_at, started_at, clock_timestamp() from gone",
        instances,
        except,
        reason
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "update task set stop_reason = $3 where instance_id = any($1) and kind <> $2 and state = 'running'",
        instances,
        except,
        reason
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Takes back an upgrade that the machine scheduled and that has not started. The lane must be locked.
///
/// # Errors
/// From Postgres.
pub async fn drop_machine_upgrade(
    db: &mut PgConnection,
    instance: Uuid,
    reason: &str,
) -> sqlx::Result<()> {
    let waiting = sqlx::query_scalar!(
        "select id from task where instance_id = $1 and act = 'upgrade' and state <> 'running' and slot_since is null",
        instance
    )
    .fetch_all(&mut *db)
    .await?;
    for id in waiting {
        cancel(db, instance, id, reason).await?;
    }
    Ok(())
}

/// What became of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It waited, and has ended.
    Ended,
    /// It runs, and was asked to stop.
    Asked,
    /// It had ended before.
    TooLate,
}

/// Cancels one task: ends it when it waits, asks it to stop when it runs. Locks the lane.
///
/// # Errors
/// From Postgres.
pub async fn cancel(
    db: &mut PgConnection,
    instance: Uuid,
    id: Uuid,
    reason: &str,
) -> sqlx::Result<Cancelled> {
    lock_lanes(db, &[instance]).await?;
    let ended = sqlx::query!(
        "with gone as (delete from task where id = $1 and state <> 'running' returning *)
         insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason,
                                   requested_by, traceparent, error, created_at, started_at, finished_at)
         select id, kind, instance_id, team_id, 'cancelled', run_after, attempt, max_attempts, payload, reason,
                requested_by, traceparent, $2, created_at, started_at, clock_timestamp() from gone",
        id,
        reason
    )
    .execute(&mut *db)
    .await?;
    let asked = sqlx::query!(
        "update task set stop_reason = $2 where id = $1 and state = 'running'",
        id,
        reason
    )
    .execute(&mut *db)
    .await?;
    promote(db, &[instance]).await?;
    Ok(match (ended.rows_affected(), asked.rows_affected()) {
        (1, _) => Cancelled::Ended,
        (_, 1) => Cancelled::Asked,
        _ => Cancelled::TooLate,
    })
}
