//! Settings: typed, read once from flags and `SVCFORGE_*`, and the only place that reads the environment.

use clap::Args;
use std::{path::PathBuf, time::Duration};

/// Postgres.
#[derive(Args, Clone, Debug)]
pub struct Database {
    /// Postgres to use, e.g. `postgres://svcforge@127.0.0.1/svcforge`.
    #[arg(long, env = "SVCFORGE_PG_DSN", hide_env_values = true)]
    pub pg_dsn: Option<String>,
    /// Postgres without a transaction pooler between: for LISTEN and migrations.
    #[arg(long, env = "SVCFORGE_PG_DIRECT_DSN", hide_env_values = true)]
    pub pg_direct_dsn: Option<String>,
    /// Connections kept open.
    #[arg(long, env = "SVCFORGE_POOL_MIN_SIZE", default_value_t = 2)]
    pub pool_min_size: u32,
    /// Most connections.
    #[arg(long, env = "SVCFORGE_POOL_MAX_SIZE", default_value_t = 16)]
    pub pool_max_size: u32,
}

impl Database {
    /// The DSN, or the error that names the setting: only `up` may start a Postgres of its own.
    ///
    /// # Errors
    /// When none is set.
    pub fn dsn(&self) -> anyhow::Result<&str> {
        self.pg_dsn.as_deref().filter(|dsn| !dsn.trim().is_empty()).ok_or_else(|| {
            anyhow::anyhow!(
                "no database: set SVCFORGE_PG_DSN (or --pg-dsn) to a Postgres 15 or newer. Only `svcforge up` starts one of its own"
            )
        })
    }

    /// The DSN for LISTEN and migrations.
    ///
    /// # Errors
    /// When no DSN is set.
    pub fn direct_dsn(&self) -> anyhow::Result<&str> {
        match self.pg_direct_dsn.as_deref() {
            Some(dsn) if !dsn.trim().is_empty() => Ok(dsn),
            _ => self.dsn(),
        }
    }
}

/// The catalog.
#[derive(Args, Clone, Debug)]
pub struct Catalog {
    /// A catalog file, or a folder with one entry a sub-folder.
    #[arg(long, env = "SVCFORGE_CATALOG_PATH")]
    pub catalog_path: Option<PathBuf>,
}

/// Workers and Helm.
#[derive(Args, Clone, Debug)]
pub struct Worker {
    /// Helm 3.17 or newer, or Helm 4.
    #[arg(long, env = "SVCFORGE_HELM_BIN", default_value = "helm")]
    pub helm_bin: PathBuf,
    /// What Helm is given as `--timeout`, seconds.
    #[arg(long, env = "SVCFORGE_HELM_TIMEOUT_S", default_value_t = 240)]
    pub helm_timeout_s: u64,
    /// Longest lease of an attempt that does not renew, seconds.
    #[arg(long, env = "SVCFORGE_LEASE_SECONDS", default_value_t = 300)]
    pub lease_seconds: u64,
    /// Attempts at once.
    #[arg(long, env = "SVCFORGE_WORKER_SLOTS", default_value_t = 4)]
    pub worker_slots: usize,
    /// How long a stopping worker lets running attempts finish, seconds; 60 when not said, 5 for `up`.
    #[arg(long, env = "SVCFORGE_DRAIN_S")]
    pub drain_s: Option<u64>,
    /// Where ServiceDefinitions live.
    #[arg(
        long,
        env = "SVCFORGE_APPS_NAMESPACE",
        default_value = "polychrome-apps"
    )]
    pub apps_namespace: String,
    /// Where svcforge keeps what is its own in a cluster.
    #[arg(long, env = "SVCFORGE_NAMESPACE", default_value = "svcforge")]
    pub own_namespace: String,
}

impl Worker {
    /// Refuses settings that contradict each other.
    ///
    /// # Errors
    /// Names both settings.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.lease_seconds > self.helm_timeout_s,
            "SVCFORGE_LEASE_SECONDS ({}) must exceed SVCFORGE_HELM_TIMEOUT_S ({}): a lease must outlive Helm",
            self.lease_seconds,
            self.helm_timeout_s
        );
        anyhow::ensure!(
            self.worker_slots > 0,
            "SVCFORGE_WORKER_SLOTS must be at least 1"
        );
        Ok(())
    }

    /// Spans of the queue: never a longer lease than the setting's, all else in its ratio.
    pub fn timing(&self) -> crate::queue::Timing {
        let standard = crate::queue::Timing::standard(self.helm_timeout());
        let factor = standard.lease.as_secs().div_ceil(self.lease_seconds.max(1));
        standard.faster(u32::try_from(factor.max(1)).unwrap_or(1))
    }

    /// Helm's timeout.
    pub fn helm_timeout(&self) -> Duration {
        Duration::from_secs(self.helm_timeout_s)
    }
}

/// Which cluster. None is ever chosen by accident: without a name there is none.
#[derive(Args, Clone, Debug, Default)]
pub struct Cluster {
    /// Kubeconfig file.
    #[arg(long, env = "SVCFORGE_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in it; its current one when not named.
    #[arg(long, env = "SVCFORGE_CONTEXT", requires = "kubeconfig")]
    pub context: Option<String>,
    /// Use the service account of the pod svcforge runs in.
    #[arg(long, env = "SVCFORGE_IN_CLUSTER", conflicts_with = "kubeconfig")]
    pub in_cluster: bool,
}

/// The portal and API.
#[derive(Args, Clone, Debug)]
pub struct Http {
    /// Address to listen on.
    #[arg(long, env = "SVCFORGE_LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: String,
    /// Address people use, e.g. `https://svcforge.example.org`; what cross-site checks compare with.
    #[arg(long, env = "SVCFORGE_EXTERNAL_URL")]
    pub external_url: Option<String>,
    /// Port of the metrics, on the same address; apart, so that it can stay inside.
    #[arg(long, env = "SVCFORGE_METRICS_PORT", default_value_t = 9000)]
    pub metrics_port: u16,
    /// Folder with the browser bundle and the styles.
    #[arg(long, env = "SVCFORGE_SITE", default_value = "target/site")]
    pub site: PathBuf,
}

/// The reconciler's ticks.
#[derive(Args, Clone, Debug)]
pub struct Reconcile {
    /// Between ticks, seconds.
    #[arg(long, env = "SVCFORGE_RECONCILE_INTERVAL_S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub reconcile_interval_s: u64,
    /// Team whose instances are upgraded first.
    #[arg(long, env = "SVCFORGE_OWN_TEAM", default_value = "platform")]
    pub own_team: String,
    /// Upgrades of a type at once, where its catalog entry says nothing.
    #[arg(long, env = "SVCFORGE_MAX_IN_FLIGHT", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    pub max_in_flight: i32,
    /// Which releases that no instance knows are logged: those svcforge should know, or all.
    #[arg(
        long,
        env = "SVCFORGE_ORPHAN_SCOPE",
        default_value = "managed",
        value_enum
    )]
    pub orphan_scope: OrphanScope,
}

/// Which unknown releases are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OrphanScope {
    /// In namespaces that svcforge made, or with its label.
    Managed,
    /// Every one.
    All,
}

/// Who is told.
#[derive(Args, Clone, Debug, Default)]
pub struct Notify {
    /// Where notifications are posted, signed (Standard Webhooks).
    #[arg(long, env = "SVCFORGE_WEBHOOK_URL", hide_env_values = true)]
    pub webhook_url: Option<String>,
    /// What they are signed with: `whsec_` and base64 of 24 to 64 bytes.
    #[arg(long, env = "SVCFORGE_WEBHOOK_SECRET", hide_env_values = true)]
    pub webhook_secret: Option<String>,
    /// A Slack-compatible incoming webhook.
    #[arg(long, env = "SVCFORGE_SLACK_URL", hide_env_values = true)]
    pub slack_url: Option<String>,
}

/// Whether the standard variables name a receiver of traces.
pub fn traces_wanted() -> bool {
    let set = |name: &str| std::env::var(name).is_ok_and(|v| !v.trim().is_empty());
    std::env::var("OTEL_SDK_DISABLED").as_deref() != Ok("true")
        && std::env::var("OTEL_TRACES_EXPORTER").as_deref() != Ok("none")
        && (set("OTEL_EXPORTER_OTLP_ENDPOINT") || set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
}

/// What Helm may see of our environment: how to reach a network, and nothing else.
pub fn helm_environment() -> Vec<(String, String)> {
    [
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ]
    .into_iter()
    .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)))
    .collect()
}

/// This very binary, even when its file has been replaced by a newer one since it started.
///
/// # Errors
/// When the system cannot tell.
pub fn own_binary() -> std::io::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() {
        return Ok(running);
    }
    std::env::current_exe()
}

/// Who sits at this machine, for the audit.
pub fn login_name() -> String {
    ["SUDO_USER", "LOGNAME", "USER"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
        .unwrap_or_else(|| "unknown".into())
}

/// Host and port of the API server, as a pod is told.
///
/// # Errors
/// When this is no pod.
pub fn service_host() -> anyhow::Result<[String; 2]> {
    let read = |name: &str| {
        std::env::var(name).map_err(|_| {
            anyhow::anyhow!("SVCFORGE_IN_CLUSTER is set, but {name} is not: is this a pod?")
        })
    };
    Ok([
        read("KUBERNETES_SERVICE_HOST")?,
        read("KUBERNETES_SERVICE_PORT")?,
    ])
}

/// The binary as an absolute path: as it is when it has a folder, else the first of that name in `PATH`.
///
/// # Errors
/// When there is none: names the setting.
pub fn find_binary(binary: &std::path::Path, setting: &str) -> anyhow::Result<PathBuf> {
    let found = if binary.components().count() > 1 {
        std::fs::canonicalize(binary).ok()
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .map(|folder| folder.join(binary))
            .find(|file| file.is_file())
    };
    found.ok_or_else(|| {
        anyhow::anyhow!(
            "there is no {}: install it, or name it with {setting}",
            binary.display()
        )
    })
}
