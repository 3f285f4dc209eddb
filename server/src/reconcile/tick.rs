//! One tick: four checks one after another, none of which can skip another; then the gauges; then the heartbeat.

use super::{CheckError, Context, checks};
use crate::{db, telemetry};
use futures::{FutureExt, future::BoxFuture};
use std::{panic::AssertUnwindSafe, time::Duration};
use tracing::Instrument;

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Releases that are gone, changed, or nobody's.
    Drift,
    /// Tasks whose worker died.
    LeaseExpiry,
    /// Instances at their end.
    Ttl,
    /// Instances behind the catalog.
    VersionDrift,
}

/// In the order of the contract.
pub const CHECKS: [Check; 4] = [
    Check::Drift,
    Check::LeaseExpiry,
    Check::Ttl,
    Check::VersionDrift,
];

impl Check {
    /// The word in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Drift => "drift",
            Self::LeaseExpiry => "lease_expiry",
            Self::Ttl => "ttl",
            Self::VersionDrift => "version_drift",
        }
    }

    /// How long it may take.
    fn deadline(self) -> Duration {
        match self {
            Self::Drift => Duration::from_secs(120),
            _ => Duration::from_secs(45),
        }
    }

    fn act(self, cx: &Context) -> BoxFuture<'_, Result<(), CheckError>> {
        match self {
            Self::Drift => checks::drift::run(cx).boxed(),
            Self::LeaseExpiry => checks::lease_expiry::run(cx).boxed(),
            Self::Ttl => checks::ttl::run(cx).boxed(),
            Self::VersionDrift => checks::version_drift::run(cx).boxed(),
        }
    }

    /// Runs it, whatever it does: an error, a panic and an overrun are the same to the others. True when it did not fail.
    pub async fn run(self, cx: &Context) -> bool {
        let began = tokio::time::Instant::now();
        let name = self.as_str();
        let work = AssertUnwindSafe(self.act(cx)).catch_unwind();
        let done = match tokio::time::timeout(self.deadline(), work).await {
            Ok(Ok(done)) => done,
            Ok(Err(panic)) => Err(CheckError::Panicked(words_of(&*panic))),
            Err(_) => Err(CheckError::Overran(self.deadline().as_secs())),
        };
        metrics::histogram!("svcforge_check_duration_seconds", "check" => name)
            .record(began.elapsed().as_secs_f64());
        if let Err(error) = &done {
            metrics::counter!("svcforge_checks_failed_total", "check" => name).increment(1);
            tracing::error!(event = "check.failed", check = name, error = %error);
        }
        done.is_ok()
    }
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|t| (*t).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}

/// What a tick came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// Checks that failed.
    pub failed: Vec<&'static str>,
}

/// One tick. The heartbeat is set after it whatever the checks did: it means that the loop runs, nothing else.
pub async fn tick(cx: &Context) -> Ticked {
    let span = tracing::info_span!("reconciler.tick");
    async {
        let mut ticked = Ticked::default();
        for check in CHECKS {
            if !check.run(cx).await {
                ticked.failed.push(check.as_str());
            }
        }
        if let Err(error) = gauges(cx).await {
            tracing::error!(event = "gauges.failed", error = %error);
        }
        telemetry::beat();
        tracing::info!(event = "tick.done");
        ticked
    }
    .instrument(span)
    .await
}

async fn gauges(cx: &Context) -> sqlx::Result<()> {
    let read = db::gauges::read(&cx.pool);
    let gauges = tokio::time::timeout(Duration::from_secs(20), read)
        .await
        .map_err(|_| sqlx::Error::PoolTimedOut)??;
    telemetry::set_gauges(gauges);
    Ok(())
}
