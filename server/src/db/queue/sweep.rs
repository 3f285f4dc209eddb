//! What nobody came back for.

use super::lanes::{lock_lanes, promote, settle};
use sqlx::PgPool;
use std::time::Duration;
use uuid::Uuid;

/// Makes what has come due ready. Returns how many heads were found.
///
/// # Errors
/// From Postgres.
pub async fn promote_due(pool: &PgPool) -> sqlx::Result<u64> {
    let mut promoted = 0;
    loop {
        let instances = sqlx::query_scalar!(
            "select distinct instance_id from (select instance_id from task where state = 'parked' and run_after <= now()
             order by run_after limit 500) due"
        )
        .fetch_all(pool)
        .await?;
        if instances.is_empty() {
            return Ok(promoted);
        }
        let mut tx = pool.begin().await?;
        lock_lanes(&mut tx, &instances).await?;
        sqlx::query!(
            "update task set state = case when rollout_type is null then 'blocked' else 'gated' end
             where instance_id = any($1) and state = 'parked' and run_after <= now()",
            &instances
        )
        .execute(&mut *tx)
        .await?;
        promoted += settle(&mut tx, &instances).await?;
        tx.commit().await?;
    }
}

/// Promotes lanes that wait without a head. There should be none; the caller counts them.
///
/// # Errors
/// From Postgres.
pub async fn promote_headless(pool: &PgPool) -> sqlx::Result<u64> {
    let instances = sqlx::query_scalar!(
        "select distinct instance_id from task t where state = 'blocked'
           and not exists (select from task r where r.instance_id = t.instance_id and r.state in ('ready', 'running')) limit 500"
    )
    .fetch_all(pool)
    .await?;
    if instances.is_empty() {
        return Ok(0);
    }
    let mut tx = pool.begin().await?;
    lock_lanes(&mut tx, &instances).await?;
    let promoted = promote(&mut tx, &instances).await?;
    tx.commit().await?;
    Ok(promoted)
}

/// Frees tasks whose worker has been silent for longer than lease and grace, or is past its deadline. Fenced: the old
/// attempt's token is void from here on.
///
/// # Errors
/// From Postgres.
pub async fn free_expired(pool: &PgPool, grace: Duration) -> sqlx::Result<u64> {
    let mut freed = 0;
    loop {
        let batch = free_some(pool, grace).await?;
        freed += batch;
        // Fewer than were asked for: those that others hold are for their next sweep.
        if batch < LOST_AT_ONCE {
            return Ok(freed);
        }
    }
}

/// A lost worker costs its task no attempt, but for one that takes its worker down every time: after so many it has failed.
const MOST_ATTEMPTS: i32 = 24;

/// Lanes freed in one transaction.
const LOST_AT_ONCE: u64 = 500;

async fn free_some(pool: &PgPool, grace: Duration) -> sqlx::Result<u64> {
    let lost = sqlx::query!(
        "select instance_id from task where state = 'running'
           and least(lease_until, deadline_at) + make_interval(secs => $1) < clock_timestamp() limit 500",
        grace.as_secs_f64()
    )
    .fetch_all(pool)
    .await?;
    if lost.is_empty() {
        return Ok(0);
    }
    let instances: Vec<Uuid> = lost.into_iter().map(|r| r.instance_id).collect();
    let mut tx = pool.begin().await?;
    lock_lanes(&mut tx, &instances).await?;
    // One of its kind that waits already takes its place.
    let merged = sqlx::query!(
        "with gone as (delete from task t where instance_id = any($1) and state = 'running'
              and least(lease_until, deadline_at) + make_interval(secs => $2) < clock_timestamp()
              and exists (select from task w where w.instance_id = t.instance_id and w.kind = t.kind and w.state <> 'running') returning *)
         insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason,
                                   requested_by, traceparent, error, created_at, started_at, finished_at)
         select id, kind, instance_id, team_id, 'superseded', run_after, attempt, max_attempts, payload, reason,
                requested_by, traceparent, 'its worker was lost', created_at, started_at, clock_timestamp() from gone",
        &instances,
        grace.as_secs_f64()
    )
    .execute(&mut *tx)
    .await?;
    let freed = sqlx::query!(
        "update task set state = 'blocked', token = null, worker = null, lease_until = null, deadline_at = null,
                error = 'its worker was lost',
                max_attempts = case when deadline_at > clock_timestamp() then greatest(max_attempts, least(max_attempts + 1, $3)) else max_attempts end
         where instance_id = any($1) and state = 'running'
           and least(lease_until, deadline_at) + make_interval(secs => $2) < clock_timestamp()",
        &instances,
        grace.as_secs_f64(),
        MOST_ATTEMPTS
    )
    .execute(&mut *tx)
    .await?;
    promote(&mut tx, &instances).await?;
    tx.commit().await?;
    Ok(merged.rows_affected() + freed.rows_affected())
}
