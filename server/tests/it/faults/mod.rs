//! The fault rows of the bar, a test a line. Times are scaled down by short leases where a whole process is killed; `./dev test
//! --long` sets `SVCFORGE_LONG` and runs the same with the bar's counts.

mod clocks;
mod mix;
mod outage;
mod watches;
mod workers;

use crate::support::{
    TestApp,
    cluster::{helms_of, kubeconfig, kubectl, provisioner, svcforge_bin},
    process::{Running, serve},
    proxy::{Http, HttpProxy, TcpProxy, Wire, until},
    reconciler::{Reconciler, events},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use svcforge::{
    cluster::{self, ClusterReleases},
    config, db, reconcile,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub fn long() -> bool {
    std::env::var_os("SVCFORGE_LONG").is_some()
}

// --- R5 -------------------------------------------------------------------------------------------------------------------

struct Proxied {
    app: TestApp,
    r: Reconciler,
    proxy: HttpProxy,
    releases: ClusterReleases,
    here: crate::support::reconciler::Made,
    expired: uuid::Uuid,
}

impl Proxied {
    /// A release that is there, an instance at its end, and a reconciler whose way to the API leads through the proxy.
    async fn new() -> Self {
        let app = TestApp::new().await;
        let mut r = Reconciler::new(&app).await;
        let proxy = HttpProxy::before(&kubeconfig()).await;
        let settings = config::Cluster {
            kubeconfig: Some(proxy.kubeconfig.clone()),
            ..Default::default()
        };
        let installation = db::installation::load(&app.db.pool)
            .await
            .unwrap()
            .id
            .to_string();
        let releases = ClusterReleases {
            clients: cluster::connect(&settings).await.unwrap().unwrap(),
            namespace: format!("svcf-own-{}", &installation[24..]),
            installation,
            apps_namespace: "polychrome-apps".into(),
        };
        releases.ensure_marker().await.unwrap();
        r.cx.releases = Some(Arc::new(releases.clone()));
        let team = format!("t{}", &releases.installation[24..]);
        let here = app.make_ready(&team, "here", None).await;
        kubectl(&["create", "namespace", &here.namespace]);
        let record = format!("sh.helm.release.v1.{}.v1", here.release);
        kubectl(&[
            "-n",
            &here.namespace,
            "create",
            "secret",
            "generic",
            &record,
            "--type=helm.sh/release.v1",
        ]);
        kubectl(&[
            "-n",
            &here.namespace,
            "label",
            "secret",
            &record,
            "owner=helm",
            &format!("name={}", here.release),
            "version=1",
            "status=deployed",
        ]);
        r.tick_well().await;
        assert!(app.open_tasks(here.id).await.is_empty());
        let expired = app.make_ready(&team, "expired", None).await.id;
        sqlx::query("update instance set expires_at = now() where id = $1")
            .bind(expired)
            .execute(&app.db.pool)
            .await
            .unwrap();
        Self {
            app,
            r,
            proxy,
            releases,
            here,
            expired,
        }
    }

    /// Under the fault: no drift task, no hot loop, TTLs and halts go on, and it is over when the fault is.
    async fn holds_under(self, fault: Http) {
        self.proxy.set(fault);
        let before = self.proxy.requests.load(Ordering::Relaxed);
        let (ticked, logs) = self.r.tick().await;
        let asked = self.proxy.requests.load(Ordering::Relaxed) - before;
        assert_eq!(ticked.failed, ["drift"], "{logs:#?}");
        assert!(asked <= 40, "no hot loop: {asked} requests in one tick");
        assert!(
            self.app.open_tasks(self.here.id).await.is_empty(),
            "no drift task from it"
        );
        assert_eq!(
            self.app.open_tasks(self.expired).await.len(),
            1,
            "TTLs go on"
        );
        assert_eq!(events(&logs, "tick.done").len(), 1);
        let (status, _) = self
            .app
            .client("admin")
            .post(
                "/api/v1/rollouts/cache/halt",
                json!({"reason": "meanwhile"}),
            )
            .await;
        assert_eq!(status, 200, "halts go on");
        self.proxy.set(Http::Pass);
        self.r.tick_well().await;
        assert!(self.app.open_tasks(self.here.id).await.is_empty());
    }
}

macro_rules! r5 {
    ($($name:ident: $fault:expr,)*) => {$(
        #[tokio::test]
        async fn $name() {
            Proxied::new().await.holds_under($fault).await;
        }
    )*};
}

r5! {
    r5_too_many_requests: Http::Status(429),
    r5_an_internal_error: Http::Status(500),
    r5_a_gateway_timeout: Http::Status(504),
    r5_a_listing_that_is_gone: Http::Gone,
    r5_a_broken_frame: Http::Broken,
    r5_a_list_that_lies: Http::Lie,
    r5_down: Http::Down,
    r5_silent: Http::Silent,
}

// --- R1, R2, R3: workers and Helm -------------------------------------------------------------------------------------------

/// A worker process whose lease is 10 s: everything of the queue runs six times faster.
pub fn worker(app: &TestApp) -> Running {
    worker_with(app, &[])
}

fn worker_with(app: &TestApp, env: &[(&str, &str)]) -> Running {
    worker_at(app, &kubeconfig(), env)
}

fn worker_at(app: &TestApp, kubeconfig: &Path, env: &[(&str, &str)]) -> Running {
    let mut command = serve(app, "worker", kubeconfig);
    command
        .envs(env.iter().copied())
        .args(["--helm-timeout-s", "9", "--lease-seconds", "10"])
        .args(["--log", "error"]);
    Running(command.spawn().unwrap())
}

async fn place(app: &TestApp, id: &str) -> (String, String) {
    let (_, page) = app
        .client("admin")
        .get(&format!("/api/v1/instances/{id}"))
        .await;
    let text = |name: &str| page["release"][name].as_str().unwrap().to_owned();
    (text("namespace"), text("name"))
}
