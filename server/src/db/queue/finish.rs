//! How an attempt ends: in the history, or back in its lane.

use super::{super::Timestamptz, Claimed, lanes::promote};
use jiff::Timestamp;
use sqlx::{PgConnection, PgPool};
use std::time::Duration;

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Succeeded,
    /// Given up.
    Failed,
    /// Not wanted any more.
    Cancelled,
    /// Merged into another.
    Superseded,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Superseded => "superseded",
        }
    }
}

/// How an attempt goes back to the queue.
#[derive(Clone, Debug)]
pub enum Return {
    /// It failed; again after the pause.
    Retry {
        /// What went wrong.
        error: String,
        /// How long to wait.
        pause: Duration,
    },
    /// An outage: costs no attempt.
    Wait {
        /// What it waits for.
        what: String,
        /// The outage in the words of who saw it.
        error: String,
        /// How long until the next look.
        pause: Duration,
    },
    /// A shutdown: costs no attempt and no pause.
    GiveBack,
    /// It may not start yet: costs no attempt. Waits gated, or parked until then.
    Gate {
        /// Why not.
        why: String,
        /// Not before.
        until: Option<Timestamp>,
    },
}

/// Ends an attempt's task and settles its lane, in one statement. False when the lease was lost: then nothing has changed.
///
/// # Errors
/// From Postgres.
pub async fn finish(
    db: &mut PgConnection,
    task: &Claimed,
    outcome: Outcome,
    error: Option<&str>,
) -> sqlx::Result<bool> {
    let one = std::slice::from_ref(task);
    Ok(end(db, one, outcome, error).await? == 1)
}

/// Ends many attempts' tasks at once, for work that writes nothing of its own. Returns how many were still held; the others' leases
/// were lost, and nothing of theirs has changed.
///
/// # Errors
/// From Postgres.
pub async fn finish_many(pool: &PgPool, tasks: &[Claimed], outcome: Outcome) -> sqlx::Result<u64> {
    end(&mut *pool.acquire().await?, tasks, outcome, None).await
}

async fn end(
    db: &mut PgConnection,
    tasks: &[Claimed],
    outcome: Outcome,
    error: Option<&str>,
) -> sqlx::Result<u64> {
    let ended = sqlx::query_scalar!(
        "select end_tasks($1, $2, $3, $4, $5) as \"n!\"",
        &tasks.iter().map(|t| t.instance_id).collect::<Vec<_>>(),
        &tasks.iter().map(|t| t.id).collect::<Vec<_>>(),
        &tasks.iter().map(|t| t.token).collect::<Vec<_>>(),
        outcome.as_str(),
        error
    )
    .fetch_one(db)
    .await?;
    Ok(ended.unsigned_abs())
}

/// Puts an attempt's task back. Meets it a waiting one of its kind, it merges into that and ends `superseded`. False when the
/// lease was lost. The lane must be locked.
///
/// # Errors
/// From Postgres.
pub async fn give_back(db: &mut PgConnection, task: &Claimed, how: &Return) -> sqlx::Result<bool> {
    let twin = sqlx::query_scalar!(
        "select id from task where instance_id = $1 and kind = $2 and state <> 'running'",
        task.instance_id,
        task.kind
    )
    .fetch_optional(&mut *db)
    .await?;
    if twin.is_some() {
        let error = match how {
            Return::Retry { error, .. } | Return::Wait { error, .. } => Some(error.as_str()),
            Return::GiveBack | Return::Gate { .. } => None,
        };
        return finish(db, task, Outcome::Superseded, error).await;
    }
    let (pause, punished, waiting, error) = match how {
        Return::Retry { error, pause } => (*pause, true, None, Some(error)),
        Return::Wait { what, error, pause } => (*pause, false, Some(what), Some(error)),
        Return::GiveBack => (Duration::ZERO, false, None, None),
        Return::Gate { why, until } => return gate(db, task, why, *until).await,
    };
    let back = sqlx::query!(
        "update task set state = case when $3::double precision > 0 then 'parked' else 'blocked' end,
                run_after = now() + make_interval(secs => $3),
                attempt = case when $4 then attempt else greatest(attempt - 1, 0) end,
                waiting_for = $5, waiting_since = case when $5::text is null then null else coalesce(waiting_since, now()) end,
                error = coalesce($6, error), token = null, worker = null, lease_until = null, deadline_at = null
         where id = $1 and token = $2",
        task.id,
        task.token,
        pause.as_secs_f64(),
        punished,
        waiting,
        error
    )
    .execute(&mut *db)
    .await?;
    promote(db, &[task.instance_id]).await?;
    Ok(back.rows_affected() == 1)
}

async fn gate(
    db: &mut PgConnection,
    task: &Claimed,
    why: &str,
    until: Option<Timestamp>,
) -> sqlx::Result<bool> {
    let back = sqlx::query!(
        "update task set state = case when $3::timestamptz > now() then 'parked' when rollout_type is null then 'blocked' else 'gated' end,
                run_after = coalesce($3, now()), attempt = greatest(attempt - 1, 0), waiting_for = $4,
                waiting_since = coalesce(waiting_since, now()), token = null, worker = null, lease_until = null, deadline_at = null
         where id = $1 and token = $2",
        task.id,
        task.token,
        until.map(Timestamptz::from) as Option<Timestamptz>,
        why
    )
    .execute(&mut *db)
    .await?;
    promote(db, &[task.instance_id]).await?;
    Ok(back.rows_affected() == 1)
}
