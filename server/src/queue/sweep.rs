//! Puts right what nobody came back for: lost leases, due tasks, lanes without a head, expired rows.

use super::{Timing, Wake};
use crate::db;
use sqlx::PgPool;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long finished tasks are kept, months.
const HISTORY_MONTHS: i32 = 12;

/// What one sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Tasks whose worker was lost.
    pub freed: u64,
    /// Tasks that came due.
    pub due: u64,
    /// Lanes without a head; should be none.
    pub headless: u64,
}

/// One pass. Each part runs whatever the others did; the first error is returned.
///
/// # Errors
/// From Postgres.
pub async fn sweep_once(pool: &PgPool, timing: &Timing) -> sqlx::Result<Swept> {
    let freed = db::queue::free_expired(pool, timing.grace).await;
    // Told before anything else can fail: tasks that were freed were freed.
    if let Ok(tasks_freed @ 1..) = freed {
        tracing::warn!(
            event = "lease.expired",
            tasks_freed,
            lease_seconds = timing.lease.as_secs()
        );
    }
    let due = db::queue::promote_due(pool).await;
    let headless = db::queue::promote_headless(pool).await;
    if let Ok(lanes @ 1..) = headless {
        metrics::counter!("svcforge_headless_lanes_total").increment(lanes);
        tracing::error!(event = "queue.headless", lanes);
    }
    Ok(Swept {
        freed: freed?,
        due: due?,
        headless: headless?,
    })
}

/// Sweeps until told to stop; every minute also what is only housekeeping.
pub async fn sweep_forever(pool: PgPool, timing: Timing, wake: Wake, stop: CancellationToken) {
    let mut kept_house = None::<tokio::time::Instant>;
    loop {
        match sweep_once(&pool, &timing).await {
            Ok(swept) if swept != Swept::default() => wake.work.notify_one(),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(event = "sweep.failed", %error);
                // What was done before it failed is done.
                wake.work.notify_one();
            }
        }
        if kept_house.is_none_or(|at| at.elapsed() > Duration::from_secs(60)) {
            kept_house = Some(tokio::time::Instant::now());
            keep_house(&pool).await;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(timing.sweep.mul_f64(0.75 + crate::ids::jitter() / 2.0)) => {}
        }
    }
}

/// Each chore whatever became of the others.
async fn keep_house(pool: &PgPool) {
    let chores = [
        ("partitions", db::queue::ensure_partitions(pool).await),
        (
            "history",
            db::queue::drop_old_partitions(pool, HISTORY_MONTHS).await,
        ),
        ("notifications", db::notification::delete_old(pool).await),
        ("drift", db::drift::delete_old(pool).await),
        ("sessions", db::session::delete_expired(pool).await),
        ("reveals", db::reveal::delete_expired(pool).await),
        ("idempotency", db::idempotency::delete_old(pool).await),
        ("links", db::user::delete_dead_links(pool).await),
    ];
    for (chore, done) in chores {
        if let Err(error) = done {
            tracing::warn!(event = "housekeeping.failed", chore, %error);
        }
    }
}
