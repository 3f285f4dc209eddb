//! `svcforge serve`: web, worker, reconciler and controller in one process, or some of them by `--roles`. `up` ends here, too.

use super::{logging, reconciler};
use crate::{
    catalog,
    changes::Changes,
    cluster, config,
    controller::{Controller, Pace},
    db,
    http::{self, AppState, Info, Live},
    ops::Ops,
    provision::{
        Provisioner,
        helm::{Helm, Workdir},
        kubernetes::Kubernetes,
        scripted::Scripted,
    },
    queue::{self, Wake, Worker},
    rollout,
    tasks::{Tasks, answer_reveals},
    telemetry,
};
use anyhow::Context;
use clap::{Args, ValueEnum};
use leptos::config::LeptosOptions;
use sqlx::PgPool;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// A part of svcforge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    /// Portal and API. Needs no cluster.
    Web,
    /// Runs tasks.
    Worker,
    /// Ticks, publishes the catalog, observes the cluster; one of however many leads.
    Reconciler,
    /// Turns ServiceDefinitions into Deployments and Services, and Workflows into ServiceDefinitions. Needs no database.
    Controller,
}

impl Role {
    /// Every part.
    pub const ALL: [Self; 4] = [Self::Web, Self::Worker, Self::Reconciler, Self::Controller];
}

#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Parts to run.
    #[arg(long, env = "SVCFORGE_ROLES", value_delimiter = ',', default_values_t = Role::ALL, value_enum)]
    roles: Vec<Role>,
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
    #[command(flatten)]
    http: config::Http,
}

pub async fn run(args: ServeArgs) -> anyhow::Result<()> {
    logging::to_stdout(&args.log);
    telemetry::metrics();
    args.worker.check()?;
    if args.roles.iter().all(|r| *r == Role::Controller) {
        return controller_alone(args).await;
    }
    let pool = db::connect(&args.database).await?;
    db::check_migrated(&pool).await?;
    let roles: BTreeSet<Role> = args.roles.iter().copied().collect();
    let clients = cluster::connect(&args.cluster).await?;
    if let Some(clients) = &clients {
        cluster::bind(clients, &pool).await?;
    }
    let provisioner = match (&clients, roles.contains(&Role::Worker)) {
        (_, false) => None,
        (Some(clients), true) => Some(
            kubernetes(
                &pool,
                clients.clone(),
                &args.worker,
                &args.cluster,
                &std::env::temp_dir(),
            )
            .await?,
        ),
        (None, true) => anyhow::bail!(
            "no cluster: name one with SVCFORGE_KUBECONFIG or SVCFORGE_IN_CLUSTER=true, or leave out the role worker"
        ),
    };
    if roles.contains(&Role::Web) {
        check_site(&args.http.site)?;
    }
    let listener = listen(&args.http.listen, "SVCFORGE_LISTEN").await?;
    let ip = listener.local_addr()?.ip();
    let metrics = listen(
        &std::net::SocketAddr::new(ip, args.http.metrics_port).to_string(),
        "SVCFORGE_METRICS_PORT",
    )
    .await?;
    let external_url = args
        .http
        .external_url
        .clone()
        .unwrap_or_else(|| format!("http://{}", args.http.listen));
    let parts = Parts {
        pool,
        direct_dsn: args.database.direct_dsn()?.to_owned(),
        roles,
        clients,
        provisioner,
        catalog: args.catalog.catalog_path.clone(),
        worker: args.worker,
        reconcile: args.reconcile,
        notify: args.notify,
        listener,
        metrics,
        info: Info {
            external_url: external_url.trim_end_matches('/').into(),
            cluster_note: None,
            site: args.http.site,
        },
    };
    let stop = CancellationToken::new();
    host(parts, stop.clone(), stopped_by_signal()).await
}

/// The controller alone: it needs no database, and no outage of one can reach it.
async fn controller_alone(args: ServeArgs) -> anyhow::Result<()> {
    let clients = cluster::connect(&args.cluster)
        .await?
        .context("no cluster: name one with SVCFORGE_KUBECONFIG or SVCFORGE_IN_CLUSTER=true")?;
    let (host, _) = args
        .http
        .listen
        .rsplit_once(':')
        .context("SVCFORGE_LISTEN must be an address and a port")?;
    let address = format!("{host}:{}", args.http.metrics_port);
    let metrics = listen(&address, "SVCFORGE_METRICS_PORT").await?;
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(http::serve(metrics, http::metrics::router(), stop.clone()));
    running.spawn(controller(clients, &args.worker).run(stop.clone()));
    tracing::info!(event = "started", roles = ?args.roles);
    stopped_by_signal().await;
    tracing::info!(event = "stopping");
    stop.cancel();
    while running.join_next().await.is_some() {}
    telemetry::flush().await;
    tracing::info!(event = "stopped");
    Ok(())
}

fn controller(clients: cluster::Clients, worker: &config::Worker) -> Controller {
    Controller {
        clients,
        namespace: worker.apps_namespace.clone(),
        pace: Pace::default(),
    }
}

/// Binds, or names what is in the way.
pub async fn listen(address: &str, setting: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}: is the port taken? Choose another with {setting}")
    })
}

/// Refuses a folder without the portal's files: pages without style or script would look as if they worked.
pub fn check_site(site: &Path) -> anyhow::Result<()> {
    for file in ["style/site.css", "pkg/svcforge.js", "start.js"] {
        anyhow::ensure!(
            site.join(file).is_file(),
            "{} is no folder with the portal's files ({file} is missing): name it with SVCFORGE_SITE (`./dev` builds it)",
            site.display()
        );
    }
    Ok(())
}

/// The provisioner for a cluster.
pub async fn kubernetes(
    pool: &PgPool,
    clients: cluster::Clients,
    worker: &config::Worker,
    named: &config::Cluster,
    tmp: &Path,
) -> anyhow::Result<Arc<dyn Provisioner>> {
    let installation = db::installation::load(pool).await?;
    let timing = worker.timing();
    timing.check().map_err(anyhow::Error::msg)?;
    let swept = Workdir::sweep(tmp);
    if swept > 0 {
        tracing::info!(event = "workdirs.swept", folders = swept);
    }
    let home = Workdir::new(tmp).map_err(|e| anyhow::anyhow!("{e}"))?;
    let kubeconfig = home.path().join("kubeconfig.json");
    let server = cluster::write_for_helm(named, &kubeconfig)?;
    let helm = Helm {
        bin: config::find_binary(&worker.helm_bin, "SVCFORGE_HELM_BIN")?,
        guard: config::own_binary()?,
        kubeconfig,
        server,
        home: Arc::new(home),
        tmp: tmp.to_path_buf(),
        timeout: worker.helm_timeout(),
        timing,
        environment: config::helm_environment(),
    };
    Ok(Arc::new(Kubernetes {
        clients,
        helm,
        installation: installation.id.to_string(),
    }))
}

/// The provisioner without a cluster.
pub fn simulated() -> Arc<dyn Provisioner> {
    Arc::new(Scripted::new(Duration::from_secs(2)))
}

/// Everything that is joined.
pub struct Parts {
    pub pool: PgPool,
    pub direct_dsn: String,
    pub roles: BTreeSet<Role>,
    pub clients: Option<cluster::Clients>,
    pub provisioner: Option<Arc<dyn Provisioner>>,
    pub catalog: Option<PathBuf>,
    pub worker: config::Worker,
    pub reconcile: config::Reconcile,
    pub notify: config::Notify,
    pub listener: TcpListener,
    pub metrics: TcpListener,
    pub info: Info,
}

/// Runs the parts until told to stop; then streams end first, workers drain, the rest follows.
pub async fn host(
    parts: Parts,
    stop: CancellationToken,
    told: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let Parts {
        pool,
        direct_dsn,
        roles,
        clients,
        provisioner,
        catalog: path,
        worker,
        reconcile,
        notify,
        listener,
        metrics,
        info,
    } = parts;
    let installation = db::installation::load(&pool).await?.id.to_string();
    let changes = Changes::start(pool.clone());
    let wake = Wake::default();
    let timing = worker.timing();
    let own_team = reconcile.own_team.clone();
    let mut running = JoinSet::new();
    let listening = CancellationToken::new();
    running.spawn(queue::listen(
        direct_dsn.clone(),
        wake.clone(),
        listening.clone(),
    ));

    if roles.contains(&Role::Reconciler) {
        let parts = reconciler::Parts {
            pool: pool.clone(),
            direct_dsn: direct_dsn.clone(),
            clients: clients.clone(),
            catalog: path,
            settings: reconcile,
            worker: worker.clone(),
            notify,
            installation: installation.clone(),
        };
        reconciler::start(parts, changes.clone(), &wake, &mut running, stop.clone()).await?;
    } else if let Some(path) = path {
        // Nobody leads here: who named a catalog wants it served all the same.
        let reload = Arc::new(tokio::sync::Notify::new());
        running.spawn(catalog::watch(
            pool.clone(),
            path,
            changes.clone(),
            reload,
            None,
            stop.clone(),
        ));
    }
    if let (true, Some(clients)) = (roles.contains(&Role::Controller), &clients) {
        running.spawn(controller(clients.clone(), &worker).run(stop.clone()));
    }
    if roles.contains(&Role::Worker) || roles.contains(&Role::Reconciler) {
        running.spawn(queue::sweep_forever(
            pool.clone(),
            timing,
            wake.clone(),
            stop.clone(),
        ));
        running.spawn(rollout::admit_forever(
            pool.clone(),
            changes.clone(),
            wake.changed.subscribe(),
            timing.sweep,
            stop.clone(),
        ));
    }
    if let (true, Some(provisioner)) = (roles.contains(&Role::Worker), provisioner) {
        let tasks = Arc::new(Tasks {
            pool: pool.clone(),
            provisioner,
        });
        running.spawn(answer_reveals(tasks.clone(), wake.clone(), stop.clone()));
        if let Some(clients) = clients {
            running.spawn(mark(
                reconciler::releases(clients, &installation, &worker),
                stop.clone(),
            ));
        }
        let one = Worker {
            pool: pool.clone(),
            heart: db::connect_few(&direct_dsn).await?,
            handler: tasks,
            timing,
            slots: worker.worker_slots,
            drain: Duration::from_secs(worker.drain_s.unwrap_or(60)),
            changes: changes.clone(),
            wake: wake.clone(),
        };
        running.spawn(one.run(stop.clone()));
    }
    running.spawn(http::serve(metrics, http::metrics::router(), stop.clone()));
    let live = Live::default();
    running.spawn(live.clone().feed(wake.changed.subscribe(), stop.clone()));
    let state = AppState {
        ops: Ops {
            pool,
            changes,
            apps_namespace: worker.apps_namespace,
            own_team,
        },
        live,
        info: Arc::new(info),
        leptos: LeptosOptions::builder().output_name("svcforge").build(),
        draining: stop.clone(),
    };
    if roles.contains(&Role::Web) {
        running.spawn(http::serve(listener, http::router(state), stop.clone()));
    }
    tracing::info!(event = "started", roles = ?roles);
    told.await;
    tracing::info!(event = "stopping");
    stop.cancel();
    // The listener goes last: workers that drain still want to hear.
    while running.len() > 1 {
        running.join_next().await;
    }
    listening.cancel();
    while running.join_next().await.is_some() {}
    telemetry::flush().await;
    tracing::info!(event = "stopped");
    Ok(())
}

/// Ends on SIGINT or SIGTERM.
pub async fn stopped_by_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Keeps the Secret that proves a listing of releases where it should be.
async fn mark(releases: cluster::ClusterReleases, stop: CancellationToken) {
    let mut pause = Duration::from_secs(2);
    loop {
        pause = match releases.ensure_marker().await {
            Ok(()) => Duration::from_secs(300),
            Err(error) => {
                tracing::warn!(event = "marker.missing", %error);
                (pause * 2).min(Duration::from_secs(60))
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
