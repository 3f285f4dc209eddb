//! Puts right what nobody came back for: lost leases, due tasks, lanes without a head, expired rows.

use super::{Timing, Wake};
use crate::db;
use sqlx::PgPool;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

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

/// One pass. Each part runs whatever the others did; the last error is returned.
///
/// # Errors
/// From Postgres.
pub async fn sweep_once(pool: &PgPool, timing: &Timing) -> sqlx::Result<Swept> {
    let freed = db::queue::free_expired(pool, timing.grace).await;
    let due = db::queue::promote_due(pool).await;
    let headless = db::queue::promote_headless(pool).await;
    let swept = Swept {
        freed: freed?,
        due: due?,
        headless: headless?,
    };
    if swept.freed > 0 {
        tracing::warn!(
            event = "lease.expired",
            tasks_freed = swept.freed,
            lease_seconds = timing.lease.as_secs()
        );
    }
    if swept.headless > 0 {
        tracing::error!(event = "queue.headless", lanes = swept.headless);
    }
    Ok(swept)
}

/// Sweeps until told to stop; every minute also what is only housekeeping.
pub async fn sweep_forever(pool: PgPool, timing: Timing, wake: Wake, stop: CancellationToken) {
    let mut kept_house = None::<tokio::time::Instant>;
    loop {
        match sweep_once(&pool, &timing).await {
            Ok(swept) if swept != Swept::default() => wake.work.notify_one(),
            Ok(_) => {}
            Err(error) => tracing::warn!(event = "sweep.failed", %error),
        }
        if kept_house.is_none_or(|at| at.elapsed() > Duration::from_secs(60)) {
            kept_house = Some(tokio::time::Instant::now());
            if let Err(error) = keep_house(&pool).await {
                tracing::warn!(event = "housekeeping.failed", %error);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(timing.sweep.mul_f64(0.75 + crate::ids::jitter() / 2.0)) => {}
        }
    }
}

async fn keep_house(pool: &PgPool) -> sqlx::Result<()> {
    db::queue::ensure_partitions(pool).await?;
    db::session::delete_expired(pool).await?;
    db::reveal::delete_expired(pool).await
}
