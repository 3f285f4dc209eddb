//! The queue's SQL. Every change of a lane is one transaction of at least two statements: first, alone, [`lock_lanes`];
//! then, in a new statement, read and write. (In one statement the snapshot is older than the lock, and a task stays blocked
//! for ever.) What every task goes through is a function of the database (migration 0012): such a transaction in one call, planned once.
//! Leases read `clock_timestamp()`, scheduling reads `now()`.

mod cancel;
mod claim;
mod enqueue;
mod finish;
mod history;
mod lanes;
mod sweep;

pub use cancel::{Cancelled, cancel, drop_machine_upgrade, overtake, overtake_many};
pub use claim::{Beat, Claimed, claim, clear_payload, heartbeat, hold, hold_lane, payload};
pub use enqueue::{
    Enqueued, NewTask, Priority, admit, enqueue, enqueue_many, has_failed, has_open, keep_gated,
    look, under_way, undone,
};
pub use finish::{Outcome, Return, finish, finish_many, give_back};
pub use history::{drop_old_partitions, ensure_partitions};
pub use lanes::lock_lanes;
pub use sweep::{free_expired, promote_due, promote_headless};

use sqlx::PgPool;

/// Wakes workers of every process. After the commit of what they should see, and without waiting for the disk.
///
/// # Errors
/// From Postgres.
pub async fn notify(pool: &PgPool, channel: &str, payloads: &[String]) -> sqlx::Result<()> {
    sqlx::query!(
        "with quick as materialized (select set_config('synchronous_commit', 'off', true))
         select pg_notify($1, p) from quick, unnest($2::text[]) p",
        channel,
        payloads
    )
    .fetch_all(pool)
    .await?;
    Ok(())
}
