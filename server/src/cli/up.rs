//! `svcforge up`: everything on this machine. Needs nothing but binaries that are there; leaves nothing running.

use super::{
    admin_user::hand_out,
    logging,
    run_file::RunFile,
    say,
    serve::{self, Parts, Role},
};
use crate::{
    cluster, config, db,
    embedded::{self, ControlPlane, Launcher, Lock, Postgres},
    http::Info,
};
use anyhow::Context;
use clap::{Args, ValueEnum};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Which cluster `up` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A control plane of its own.
    Local,
    /// None: installs are played.
    Simulated,
}

#[derive(Args, Debug)]
pub struct UpArgs {
    /// Folder of everything that is kept.
    #[arg(long, env = "SVCFORGE_DIR", default_value = ".svcforge")]
    dir: PathBuf,
    /// Forget what an earlier `up` kept here.
    #[arg(long)]
    fresh: bool,
    /// Which cluster, when none is named by a kubeconfig; local when not said.
    #[arg(long, value_enum)]
    cluster: Option<Kind>,
    /// Folder with the control plane's binaries (`./dev` builds them).
    #[arg(long, env = "SVCFORGE_LOCAL_BIN")]
    local_bin: Option<PathBuf>,
    /// Port of the portal; a free one when it is taken.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Port of the metrics; a free one when it is taken.
    #[arg(long, env = "SVCFORGE_METRICS_PORT", default_value_t = 9000)]
    metrics_port: u16,
    /// Parts to run.
    #[arg(long, value_delimiter = ',', default_values_t = [Role::Web, Role::Worker, Role::Reconciler, Role::Controller], value_enum)]
    roles: Vec<Role>,
    /// Log level, or a tracing filter.
    #[arg(long, env = "SVCFORGE_LOG", default_value = "info")]
    log: String,
    /// Folder with the browser bundle and the styles.
    #[arg(long, env = "SVCFORGE_SITE", default_value = "target/site")]
    site: PathBuf,
    #[command(flatten)]
    catalog: config::Catalog,
    #[command(flatten)]
    worker: config::Worker,
    #[command(flatten)]
    reconcile: config::Reconcile,
    #[command(flatten)]
    notify: config::Notify,
    #[command(flatten)]
    named: config::Cluster,
}

/// What a simulated database is bound to.
const SIMULATED: &str = "simulated";
/// Where the catalog is when nobody says.
const CATALOG: &str = "deploy/catalog";

pub async fn run(mut args: UpArgs) -> anyhow::Result<()> {
    args.worker.check()?;
    anyhow::ensure!(
        args.cluster.is_none() || (args.named.kubeconfig.is_none() && !args.named.in_cluster),
        "--cluster and a named cluster (--kubeconfig, SVCFORGE_KUBECONFIG, SVCFORGE_IN_CLUSTER) exclude each other: leave one out"
    );
    args.worker.drain_s.get_or_insert(5);
    std::fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    let dir = args.dir.canonicalize()?;
    serve::check_site(&args.site)?;
    let _lock = Lock::take(&dir)?;
    RunFile::remove(&dir);
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("svcforge.log"))?;
    logging::to_file(&args.log, log);
    // From here on a signal stops what has been started.
    let stop = CancellationToken::new();
    let told = told_to_stop();
    let mut started = Started::default();
    let result = tokio::select! {
        result = start_and_host(&mut args, &dir, &mut started, stop.clone()) => result,
        () = told => {
            say("stopping …");
            stop.cancel();
            Ok(())
        }
    };
    if let Some(hosting) = started.hosting.take() {
        stop.cancel();
        let _ = hosting.await;
    }
    RunFile::remove(&dir);
    tokio::task::block_in_place(|| started.stop());
    result
}

#[derive(Default)]
struct Started {
    postgres: Option<Postgres>,
    plane: Option<ControlPlane>,
    hosting: Option<tokio::task::JoinHandle<anyhow::Result<()>>>,
}

impl Started {
    fn stop(&mut self) {
        if let Some(plane) = &mut self.plane {
            plane.stop();
        }
        if let Some(postgres) = &mut self.postgres {
            postgres.stop();
        }
    }
}

async fn start_and_host(
    args: &mut UpArgs,
    dir: &Path,
    started: &mut Started,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let ended = tokio::task::block_in_place(|| embedded::end_leftovers(dir))?;
    if !ended.is_empty() {
        say(format!(
            "ended what an earlier run had left: {}",
            ended.join(", ")
        ));
    }
    if args.fresh {
        embedded::forget(dir)?;
    }
    // What a killed run has left there goes now.
    let tmp = dir.join("tmp");
    let _ = std::fs::remove_dir_all(&tmp);
    std::fs::create_dir_all(&tmp)?;
    let launcher = Launcher::new(&std::env::current_exe()?, dir);
    step("starting Postgres", began);
    let postgres = Postgres::start(&launcher, dir).await?;
    let dsn = postgres.dsn.clone();
    started.postgres = Some(postgres);
    let database = config::Database {
        pg_dsn: Some(dsn.clone()),
        pg_direct_dsn: None,
        pool_min_size: 2,
        pool_max_size: 24,
    };
    let pool = db::connect(&database).await?;
    db::migrate(&pool).await?;

    let mut note = None;
    if args.named.kubeconfig.is_none() && !args.named.in_cluster {
        note = Some(match args.cluster.unwrap_or(Kind::Local) {
            Kind::Local => {
                step("starting the local control plane", began);
                let bin = args.local_bin.clone().context("name the control plane's binaries with --local-bin (`./dev up` does), or use --cluster simulated")?;
                let plane =
                    ControlPlane::start(&launcher, &bin, dir, &args.worker.apps_namespace).await?;
                args.named.kubeconfig = Some(plane.kubeconfig.clone());
                args.worker.helm_bin = plane.bin.join("helm");
                started.plane = Some(plane);
                "local control plane: everything is real but the containers"
            }
            Kind::Simulated => "simulated cluster: nothing is installed",
        });
    }
    db::installation::load(&pool).await?;
    // Whoever led here before is dead: this database is ours alone until we have started.
    db::leader::free(&pool).await?;
    let clients = cluster::connect(&args.named).await?;
    let provisioner = match &clients {
        Some(clients) => {
            cluster::bind(clients, &pool).await?;
            serve::kubernetes(&pool, clients.clone(), &args.worker, &args.named, &tmp).await?
        }
        None => {
            // What was played must never be taken for real, nor the other way round.
            let bound =
                db::installation::bind_cluster(&mut *pool.acquire().await?, SIMULATED).await?;
            anyhow::ensure!(
                bound == SIMULATED,
                "this folder belongs to a real cluster: use another --dir for a simulated one, or --fresh"
            );
            serve::simulated()
        }
    };

    if let Some(path) = args.named.kubeconfig.as_ref().filter(|_| note.is_none()) {
        step(
            &format!("using the cluster that {} names", path.display()),
            began,
        );
    }
    let handout = hand_out(&pool).await?;
    let listener = bind(args.port).await?;
    let metrics = bind(args.metrics_port).await?;
    let metrics_url = format!("http://{}/metrics", metrics.local_addr()?);
    let url = format!("http://{}", listener.local_addr()?);
    let parts = Parts {
        pool: pool.clone(),
        direct_dsn: dsn.clone(),
        roles: args.roles.iter().copied().collect(),
        clients,
        provisioner: Some(provisioner),
        catalog: Some(
            args.catalog
                .catalog_path
                .clone()
                .unwrap_or_else(|| CATALOG.into()),
        ),
        worker: args.worker.clone(),
        reconcile: args.reconcile.clone(),
        notify: args.notify.clone(),
        listener,
        metrics,
        info: Info {
            external_url: url.clone(),
            cluster_note: note.map(str::to_owned),
            site: args.site.clone(),
        },
    };
    let mut hosting = tokio::spawn(serve::host(
        parts,
        stop.clone(),
        stop.clone().cancelled_owned(),
    ));
    step("publishing the catalog", began);
    tokio::select! {
        result = &mut hosting => return result?,
        published = published(&pool) => {
            started.hosting = Some(hosting);
            published?;
        }
    }
    let run = RunFile {
        url: url.clone(),
        metrics_url,
        pg_dsn: dsn,
        kubeconfig: args.named.kubeconfig.clone(),
        apps_namespace: args.worker.apps_namespace.clone(),
        api_token: handout.token,
        pids: launcher.pids(),
    };
    run.write(dir)?;
    step("ready", began);
    say(format!(
        "\n  portal   {url}\n  sign in  {url}{}\n  API      token and kubeconfig in {}\n\n  Ctrl-C stops everything; what was made is kept for the next `up`.",
        handout.link,
        dir.join("run.json").display()
    ));
    stop.cancelled().await;
    Ok(())
}

/// That port of loopback, or a free one when it is taken.
async fn bind(port: u16) -> std::io::Result<TcpListener> {
    match TcpListener::bind(("127.0.0.1", port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(("127.0.0.1", 0)).await,
    }
}

/// Waits for the first catalog; a fault of it is said, and ends nothing: it may be mended while svcforge runs.
async fn published(pool: &sqlx::PgPool) -> anyhow::Result<()> {
    loop {
        if let Some(fault) = db::catalog::fault(pool).await? {
            say(format!(
                "the catalog is not valid; the portal shows this until it is mended:\n{fault}"
            ));
            return Ok(());
        }
        if db::catalog::is_published(pool).await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn step(what: &str, began: Instant) {
    say(format!("[{:5.1} s] {what}", began.elapsed().as_secs_f64()));
}

/// Ends on Ctrl-C, on SIGTERM, or when the parent dies.
async fn told_to_stop() {
    tokio::select! {
        () = serve::stopped_by_signal() => {}
        () = orphaned() => {}
    }
}

/// Ends when the parent dies.
pub async fn orphaned() {
    let parent = nix::unistd::getppid();
    while nix::unistd::getppid() == parent {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
