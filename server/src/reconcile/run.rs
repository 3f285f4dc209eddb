//! The loop: tick first, then sleep. A tick that overruns delays the next; missed ones are not replayed. Between ticks the same
//! checks run sooner when a watch or a message says that there may be something: faster, never needed.

use super::{Check, Context, tick};
use crate::{
    cluster::{ClusterReleases, Releases, Watched},
    db,
    lease::{Candidate, Leading, RECONCILER},
    rollout::told_of_rollout,
    telemetry,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{broadcast, mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Changes are gathered for this long before a check runs between ticks.
const GATHER: Duration = Duration::from_millis(700);

/// Helm is busy in a large cluster: a look between ticks rests this long after the one before.
const REST: Duration = Duration::from_secs(3);

/// Ticks while this process leads, until told to stop; a tick that runs is finished.
pub async fn run(
    cx: impl Fn(Leading) -> Context,
    cluster: Option<ClusterReleases>,
    mut leading: watch::Receiver<Option<Leading>>,
    told: broadcast::Sender<Option<String>>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let now = *leading.borrow_and_update();
        let Some(now) = now else {
            telemetry::stop_beating();
            tokio::select! {
                () = stop.cancelled() => return,
                changed = leading.changed() => if changed.is_err() { return },
            }
            continue;
        };
        lead(cx(now), cluster.as_ref(), &mut leading, &told, &stop).await;
    }
}

/// Ticks until the lease is lost or it is told to stop.
async fn lead(
    cx: Context,
    cluster: Option<&ClusterReleases>,
    leading: &mut watch::Receiver<Option<Leading>>,
    told: &broadcast::Sender<Option<String>>,
    stop: &CancellationToken,
) {
    let (watched, mut released) = match cluster.map(ClusterReleases::watch) {
        Some((watched, rx)) => (Some(Arc::new(watched)), Some(rx)),
        None => (None, None),
    };
    let mut told = told.subscribe();
    let mut looked = Instant::now();
    loop {
        tick(&cx).await;
        let next = Instant::now() + cx.rules.interval;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = leading.changed() => {
                    if changed.is_err() || *leading.borrow_and_update() != Some(cx.leading) {
                        return;
                    }
                }
                () = tokio::time::sleep_until(next) => break,
                () = told_of_rollout(&mut told) => {
                    between(&cx, Check::VersionDrift, None, stop).await;
                    while told.try_recv().is_ok() {}
                }
                () = release_changed(&mut released), if looked.elapsed() > REST => {
                    between(&cx, Check::Drift, watched.clone(), stop).await;
                    looked = Instant::now();
                }
                // The arm above is asked again once its rest is over.
                () = tokio::time::sleep_until(looked + REST), if looked.elapsed() <= REST => {}
            }
        }
    }
}

async fn release_changed(released: &mut Option<mpsc::Receiver<()>>) {
    match released {
        Some(rx) => {
            if rx.recv().await.is_none() {
                *released = None;
            }
        }
        None => std::future::pending().await,
    }
}

/// One check between ticks, after a moment; drift reads the watch's store instead of the cluster.
async fn between(
    cx: &Context,
    check: Check,
    watched: Option<Arc<Watched>>,
    stop: &CancellationToken,
) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = tokio::time::sleep(GATHER) => {}
    }
    let mut cx = cx.clone();
    cx.whole = false;
    if let Some(watched) = watched {
        // Until the watch has shown everything there is nothing to compare with; the tick will.
        if watched.listing().unknown.contains_key("") {
            return;
        }
        let watched: Arc<dyn Releases> = watched;
        cx.releases = Some(watched);
    }
    let span = tracing::info_span!("reconciler.between", check = check.as_str());
    check.run(&cx).instrument(span).await;
}

/// What became of `reconcile --once`.
#[derive(Clone, Debug)]
pub enum Once {
    /// One tick was run, failed checks included.
    Ticked,
    /// Somebody else holds the lease.
    Held(String),
}

/// One tick under the lease, which is waited for `patience`.
///
/// # Errors
/// When Postgres cannot be asked.
pub async fn run_once(
    mut candidate: Candidate,
    patience: Duration,
    pool: &sqlx::PgPool,
    work: impl AsyncFnOnce(Leading),
) -> anyhow::Result<Once> {
    let until = Instant::now() + patience;
    let leading = loop {
        if let Some(leading) = candidate.try_lead(None).await? {
            break leading;
        }
        if Instant::now() > until {
            let holder = db::leader::find(pool, RECONCILER).await?;
            return Ok(Once::Held(holder.map_or_else(
                || "a reconciler that has just ended".into(),
                |h| {
                    format!(
                        "reconciler {} (since {})",
                        h.id,
                        h.since.strftime("%Y-%m-%d %H:%M:%S UTC")
                    )
                },
            )));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    // Renewed beside the tick: one that takes long must not lose its lease.
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let renewing = tokio::spawn(async move {
        let mut stopped = stopped;
        loop {
            tokio::select! {
                _ = &mut stopped => {
                    candidate.give_up(leading).await;
                    return;
                }
                () = tokio::time::sleep(crate::lease::RENEW) => {
                    if let Err(error) = candidate.try_lead(Some(leading)).await {
                        tracing::warn!(event = "lease.unknown", %error);
                    }
                }
            }
        }
    });
    work(leading).await;
    let _ = stop.send(());
    let _ = renewing.await;
    Ok(Once::Ticked)
}
