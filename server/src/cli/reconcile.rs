//! `svcforge reconcile`: the reconciler alone; `--once` runs one tick under the lease.

use super::{
    logging,
    reconciler::{Parts, start},
    serve::{listen, stopped_by_signal},
};
use crate::{
    catalog,
    changes::Changes,
    cluster, config, db, http,
    lease::Candidate,
    notify::Sender,
    queue::{self, Wake},
    reconcile::{Once, run_once, tick},
    telemetry,
};
use clap::Args;
use std::{process::ExitCode, time::Duration};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long `--once` waits for the lease.
const PATIENCE: Duration = Duration::from_secs(10);
/// What `--once` exits with when somebody else holds it.
const HELD: u8 = 3;

#[derive(Args, Debug)]
pub struct ReconcileArgs {
    /// One tick, then exit: 0 whatever the checks did, 3 when another reconciler holds the lease.
    #[arg(long)]
    once: bool,
    /// Address of the metrics.
    #[arg(long, env = "SVCFORGE_METRICS_ADDRESS", default_value = "127.0.0.1")]
    metrics_address: std::net::IpAddr,
    /// Port of the metrics; none with `--once`.
    #[arg(long, env = "SVCFORGE_METRICS_PORT", default_value_t = 9000)]
    metrics_port: u16,
    /// Log level, or a tracing filter.
    #[arg(long, env = "SVCFORGE_LOG", default_value = "info")]
    log: String,
    #[command(flatten)]
    database: config::Database,
    #[command(flatten)]
    catalog: config::Catalog,
    #[command(flatten)]
    worker: config::Worker,
    #[command(flatten)]
    reconcile: config::Reconcile,
    #[command(flatten)]
    notify: config::Notify,
    #[command(flatten)]
    cluster: config::Cluster,
}

pub async fn run(args: ReconcileArgs) -> anyhow::Result<ExitCode> {
    logging::to_stdout(&args.log);
    args.worker.check()?;
    let pool = db::connect(&args.database).await?;
    db::check_migrated(&pool).await?;
    let installation = db::installation::load(&pool).await?;
    let clients = cluster::connect(&args.cluster).await?;
    if let Some(clients) = &clients {
        // A cluster that is away must not stop the other checks; one that is another's must.
        cluster::bind_if_reachable(clients, &pool).await?;
    }
    let parts = Parts {
        pool: pool.clone(),
        direct_dsn: args.database.direct_dsn()?.to_owned(),
        clients,
        catalog: args.catalog.catalog_path,
        settings: args.reconcile,
        worker: args.worker,
        notify: args.notify,
        installation: installation.id.to_string(),
    };
    let code = if args.once {
        once(parts).await?
    } else {
        let address = std::net::SocketAddr::new(args.metrics_address, args.metrics_port);
        forever(parts, &address.to_string()).await?;
        ExitCode::SUCCESS
    };
    telemetry::flush().await;
    Ok(code)
}

async fn once(parts: Parts) -> anyhow::Result<ExitCode> {
    let changes = Changes::start(parts.pool.clone());
    let sender = Sender::new(parts.pool.clone(), &parts.notify)?;
    let pool = parts.pool.clone();
    let done = run_once(
        Candidate::new(&parts.direct_dsn),
        PATIENCE,
        &pool,
        async |leading| {
            let outbox = sender.outbox();
            if let Err(error) = db::notification::set_sinks(&parts.pool, &outbox.sinks).await {
                tracing::warn!(event = "notify.away", %error);
            }
            if let Some(path) = &parts.catalog
                && let Err(error) = catalog::load_now(&parts.pool, path).await
            {
                tracing::error!(event = "catalog.not_published", error = %format!("{error:#}"));
            }
            tick(&parts.context(leading, changes.clone(), outbox)).await;
            // There is no later for this process: what is due is tried once.
            if let Err(error) = sender.deliver_once().await {
                tracing::warn!(event = "notify.away", %error);
            }
        },
    )
    .await?;
    // What changed is told after a moment.
    tokio::time::sleep(Duration::from_millis(100)).await;
    match done {
        Once::Ticked => Ok(ExitCode::SUCCESS),
        Once::Held(holder) => {
            use std::io::Write;
            let _ = writeln!(
                std::io::stderr(),
                "svcforge: the lease is held by {holder}; no tick was run"
            );
            Ok(ExitCode::from(HELD))
        }
    }
}

async fn forever(parts: Parts, address: &str) -> anyhow::Result<()> {
    let metrics = listen(address, "SVCFORGE_METRICS_PORT").await?;
    let (stop, wake, mut running) = (CancellationToken::new(), Wake::default(), JoinSet::new());
    let changes = Changes::start(parts.pool.clone());
    running.spawn(queue::listen(
        parts.direct_dsn.clone(),
        wake.clone(),
        stop.clone(),
    ));
    running.spawn(queue::sweep_forever(
        parts.pool.clone(),
        parts.worker.timing(),
        wake.clone(),
        stop.clone(),
    ));
    running.spawn(http::serve(metrics, http::metrics::router(), stop.clone()));
    start(parts, changes, &wake, &mut running, stop.clone()).await?;
    tracing::info!(event = "started", roles = "reconciler");
    stopped_by_signal().await;
    tracing::info!(event = "stopping");
    stop.cancel();
    while running.join_next().await.is_some() {}
    tracing::info!(event = "stopped");
    Ok(())
}
