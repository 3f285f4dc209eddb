//! Taking tasks, holding them, and what a holder may read.

use super::Priority;
use serde_json::Value;
use sqlx::{PgConnection, PgExecutor, PgPool};
use std::time::Duration;
use uuid::Uuid;

/// A task in a worker's hands.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Its id.
    pub id: Uuid,
    /// Its kind.
    pub kind: String,
    /// Whose lane.
    pub instance_id: Uuid,
    /// For the handler.
    pub payload: Value,
    /// From 1.
    pub attempt: i32,
    /// How many there may be.
    pub max_attempts: i32,
    /// The fence.
    pub token: i64,
    /// Who asked.
    pub requested_by: String,
    /// Why.
    pub reason: String,
    /// What the attempt before this one ended in.
    pub error: Option<String>,
    /// Why it should not even begin, when somebody asked.
    pub stop_reason: Option<String>,
    /// The row of `may_act`'s table, as a word.
    pub act: Option<String>,
    /// The service type whose slots it takes.
    pub rollout_type: Option<String>,
    /// W3C trace context of who asked.
    pub traceparent: Option<String>,
}

/// Takes up to `limit` heads of lanes, for one worker process: what is of `at_least` that priority.
///
/// The commit does not wait for the disk: a claim that a crash of Postgres forgets is a task that is still ready, and the attempt that
/// holds it finds out with its first step, a fenced write that does wait (and with it every commit before), before it touches the world.
///
/// # Errors
/// From Postgres.
#[allow(clippy::too_many_arguments, reason = "one statement's parameters")]
pub async fn claim(
    db: impl PgExecutor<'_>,
    worker: Uuid,
    kinds: &[String],
    limit: i64,
    at_least: Priority,
    lease: Duration,
    deadline: Duration,
) -> sqlx::Result<Vec<Claimed>> {
    sqlx::query_as!(
        Claimed,
        "with quick as materialized (select set_config('synchronous_commit', 'off', true))
         select c.id as \"id!\", kind as \"kind!\", instance_id as \"instance_id!\", payload as \"payload!\", attempt as \"attempt!\",
                max_attempts as \"max_attempts!\", token as \"token!\", requested_by as \"requested_by!\", reason as \"reason!\",
                error, stop_reason, act, rollout_type, traceparent
         from quick, claim_tasks($1, $2, $3, $4, $5, $6) c",
        worker,
        kinds,
        limit,
        lease.as_secs_f64(),
        deadline.as_secs_f64(),
        at_least as i16
    )
    .fetch_all(db)
    .await
}

/// What a heartbeat learned of one attempt.
#[derive(Debug)]
pub struct Beat {
    /// Which task.
    pub id: Uuid,
    /// Why it should stop, when somebody asked.
    pub stop_reason: Option<String>,
}

/// Renews leases. Attempts that are missing from the answer have been lost.
///
/// # Errors
/// From Postgres.
pub async fn heartbeat(
    pool: &PgPool,
    ids: &[Uuid],
    tokens: &[i64],
    lease: Duration,
) -> sqlx::Result<Vec<Beat>> {
    sqlx::query_as!(
        Beat,
        "update task set lease_until = clock_timestamp() + make_interval(secs => $3)
         from unnest($1::uuid[], $2::bigint[]) as held (id, token)
         where task.id = held.id and task.token = held.token returning task.id, stop_reason",
        ids,
        tokens,
        lease.as_secs_f64()
    )
    .fetch_all(pool)
    .await
}

/// Whether the attempt still holds its task; locks the task for the transaction when it does.
///
/// # Errors
/// From Postgres.
pub async fn hold(db: &mut PgConnection, id: Uuid, token: i64) -> sqlx::Result<bool> {
    let held = sqlx::query_scalar!(
        "select id from task where id = $1 and token = $2 for update",
        id,
        token
    )
    .fetch_optional(db)
    .await?;
    Ok(held.is_some())
}

/// As [`hold`], behind its lane's lock, and why the attempt was asked to stop, if it was: what a transaction that ends an attempt
/// begins with. None when the lease is lost.
///
/// # Errors
/// From Postgres.
pub async fn hold_lane(db: &mut PgConnection, task: &Claimed) -> sqlx::Result<Option<Beat>> {
    sqlx::query_as!(
        Beat,
        // The lane first: rows are locked in the order of the join's inputs, and the task's newest version is what is locked.
        "with lane as materialized (select id from instance where id = $1 for no key update)
         select t.id, t.stop_reason from task t, lane where t.id = $2 and t.token = $3 and t.instance_id = lane.id for update of t",
        task.instance_id,
        task.id,
        task.token
    )
    .fetch_optional(db)
    .await
}

/// The payload as it is now: an upgrade's target is written when it starts.
///
/// # Errors
/// From Postgres.
pub async fn payload(db: &mut PgConnection, id: Uuid, token: i64) -> sqlx::Result<Option<Value>> {
    sqlx::query_scalar!(
        "select payload from task where id = $1 and token = $2",
        id,
        token
    )
    .fetch_optional(db)
    .await
}

/// Forgets a target that was not gone to. Fenced.
///
/// # Errors
/// From Postgres.
pub async fn clear_payload(db: &mut PgConnection, id: Uuid, token: i64) -> sqlx::Result<()> {
    sqlx::query!(
        "update task set payload = '{}' where id = $1 and token = $2",
        id,
        token
    )
    .execute(db)
    .await?;
    Ok(())
}
