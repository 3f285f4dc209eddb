//! The fault rows of the bar, a test a line. Times are scaled down by short leases where a whole process is killed; `./dev test
//! --long` sets `SVCFORGE_LONG` and runs the same with the bar's counts.

use crate::support::{
    TestApp,
    cluster::{helm_bin, kubeconfig, kubectl, provisioner, svcforge_bin},
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
    process::{Child, Command, Stdio},
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

/// A child that is ended with the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGCONT);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }
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

/// The watches, too: ten seconds without an API are no hot loop, and afterwards they show again.
#[tokio::test]
async fn r5_watches_back_off_and_come_back() {
    let p = Proxied::new().await;
    let (_tell, leading) = watch::channel(Some(p.r.cx.leading));
    let stop = CancellationToken::new();
    let mut cx = p.r.cx.clone();
    cx.rules.interval = Duration::from_secs(3600);
    let running = tokio::spawn(reconcile::run(
        move |_| cx.clone(),
        Some(p.releases.clone()),
        leading,
        p.app.wake.changed.clone(),
        stop.clone(),
    ));
    tokio::time::sleep(Duration::from_secs(2)).await;
    for fault in [Http::Down, Http::Status(500), Http::Gone, Http::Broken] {
        p.proxy.set(fault);
        let before = p.proxy.requests.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(4)).await;
        let asked = p.proxy.requests.load(Ordering::Relaxed) - before;
        assert!(asked < 60, "{fault:?}: {asked} requests in 4 s");
        assert!(p.app.open_tasks(p.here.id).await.is_empty(), "{fault:?}");
    }
    p.proxy.set(Http::Pass);
    kubectl(&[
        "-n",
        &p.here.namespace,
        "delete",
        "secret",
        "-l",
        "owner=helm",
    ]);
    until(
        "the watch shows again",
        Duration::from_secs(60),
        async || p.app.open_tasks(p.here.id).await.len() == 1,
    )
    .await;
    stop.cancel();
    running.await.unwrap();
}

// --- R6 -------------------------------------------------------------------------------------------------------------------

fn reconciler(app: &TestApp) -> Running {
    Running(
        Command::new(svcforge_bin())
            .args([
                "reconcile",
                "--metrics-port",
                "0",
                "--reconcile-interval-s",
                "1",
                "--log",
                "warn",
            ])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("SVCFORGE_PG_DSN", &app.db.dsn)
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

/// R6 with real processes: the leader is frozen past its lease, the other takes over within 20 s; together they make one set of tasks.
#[tokio::test]
async fn r6_two_reconcilers_one_frozen() {
    let app = TestApp::new().await;
    let a = reconciler(&app);
    let expire = async |name: &str| {
        let one = app.make_ready("demo", name, None).await.id;
        sqlx::query("update instance set expires_at = now() where id = $1")
            .bind(one)
            .execute(&app.db.pool)
            .await
            .unwrap();
        one
    };
    let first = expire("first").await;
    until("the first leads", Duration::from_secs(20), async || {
        app.open_tasks(first).await.len() == 1
    })
    .await;
    let b = reconciler(&app);
    tokio::time::sleep(Duration::from_secs(2)).await;
    a.signal(Signal::SIGSTOP);
    let frozen = Instant::now();
    let mut ids = vec![first];
    for i in 0..20 {
        ids.push(expire(&format!("s{i}")).await);
    }
    until(
        "the follower takes over",
        Duration::from_secs(25),
        async || app.open_tasks(ids[20]).await.len() == 1,
    )
    .await;
    assert!(
        frozen.elapsed() < Duration::from_secs(21),
        "within 20 s: {:?}",
        frozen.elapsed()
    );
    if long() {
        tokio::time::sleep(Duration::from_secs(120).saturating_sub(frozen.elapsed())).await;
    }
    for i in 20..30 {
        ids.push(expire(&format!("s{i}")).await);
    }
    a.signal(Signal::SIGCONT);
    tokio::time::sleep(Duration::from_secs(4)).await;
    for id in &ids {
        assert_eq!(app.open_tasks(*id).await.len(), 1);
        let told: i64 = sqlx::query_scalar("select count(*) from instance_event where instance_id = $1 and kind = 'instance.expired'").bind(id).fetch_one(&app.db.pool).await.unwrap();
        assert_eq!(told, 1, "one set of tasks");
    }
    // A clean stop hands over within a second or so: the follower hears of it.
    b.signal(Signal::SIGTERM);
    let began = Instant::now();
    let last = expire("last").await;
    until("handed over", Duration::from_secs(5), async || {
        app.open_tasks(last).await.len() == 1
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(4));
}

// --- R1, R2, R3: workers and Helm -------------------------------------------------------------------------------------------

/// A worker process whose lease is 10 s: everything of the queue runs six times faster.
pub fn worker(app: &TestApp) -> Running {
    worker_with(app, &[])
}

fn worker_with(app: &TestApp, env: &[(&str, &str)]) -> Running {
    Running(
        Command::new(svcforge_bin())
            .envs(env.iter().copied())
            .args([
                "serve",
                "--roles",
                "worker",
                "--listen",
                "127.0.0.1:0",
                "--metrics-port",
                "0",
                "--helm-timeout-s",
                "9",
                "--lease-seconds",
                "10",
                "--log",
                "error",
            ])
            .arg(format!("--kubeconfig={}", kubeconfig().display()))
            .arg(format!("--helm-bin={}", helm_bin().display()))
            .env("SVCFORGE_PG_DSN", &app.db.dsn)
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

/// Ids of Helm processes that work on that release.
pub fn helms_of(release: &str) -> Vec<i32> {
    let Ok(all) = std::fs::read_dir("/proc") else {
        return vec![];
    };
    all.flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|b| *b == 0).map(String::from_utf8_lossy);
            let program = words.next().unwrap_or_default().into_owned();
            program.ends_with("helm") && words.any(|w| w == release)
        })
        .collect()
}

async fn place(app: &TestApp, id: &str) -> (String, String) {
    let (_, page) = app
        .client("admin")
        .get(&format!("/api/v1/instances/{id}"))
        .await;
    let text = |name: &str| page["release"][name].as_str().unwrap().to_owned();
    (text("namespace"), text("name"))
}

/// R1: workers are killed -9 at random moments of installs, changes and removals; never two Helms on one release, nothing is
/// repaired by hand, everything converges.
#[tokio::test]
async fn r1_workers_killed_over_and_over() {
    let app = TestApp::new().await;
    let mut dice = StdRng::seed_from_u64(20_261_201);
    let member = app.client("member");
    let mut ids = vec![];
    for i in 0..6 {
        ids.push(
            member
                .ask("cache", &format!("k{i}"), json!({"memory_mb": 64}))
                .await,
        );
    }
    let mut releases = vec![];
    for id in &ids {
        releases.push(place(&app, id).await.1);
    }
    let (stop, watched) = (CancellationToken::new(), releases.clone());
    let watching = {
        let stop = stop.clone();
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                for release in &watched {
                    let helms = helms_of(release);
                    assert!(helms.len() <= 1, "two Helms on {release}: {helms:?}");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    };
    let mut running = worker(&app);
    let kills = if long() { 100 } else { 12 };
    for n in 0..kills {
        tokio::time::sleep(Duration::from_millis(dice.random_range(150..2500))).await;
        running.0.kill().unwrap();
        running.0.wait().unwrap();
        running = worker(&app);
        // In between people go on: changes where something is ready.
        let id = &ids[n % ids.len()];
        let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
        if page["state"] == "ready" {
            let patch = member
                .request("PATCH", &format!("/api/v1/instances/{id}"))
                .header("if-match", format!("\"{}\"", page["version"]))
                .json(&json!({"parameters": {"memory_mb": 64 + n}}));
            member.send(patch).await;
        }
    }
    for id in &ids {
        until("converges", Duration::from_secs(150), async || {
            let page = member.get(&format!("/api/v1/instances/{id}")).await.1;
            assert_ne!(page["state"], "failed", "{page:#}");
            page["state"] == "ready" && app.open_tasks(id.parse().unwrap()).await.is_empty()
        })
        .await;
        let (namespace, release) = place(&app, id).await;
        let deployed = kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            "-l",
            &format!("owner=helm,name={release},status=deployed"),
            "-o",
            "name",
        ]);
        assert_eq!(deployed.lines().count(), 1, "{deployed}");
        member.delete(&format!("/api/v1/instances/{id}")).await;
    }
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(dice.random_range(100..1500))).await;
        running.0.kill().unwrap();
        running.0.wait().unwrap();
        running = worker(&app);
    }
    for id in &ids {
        until("removed", Duration::from_secs(150), async || {
            member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "deleted"
        })
        .await;
    }
    stop.cancel();
    watching.await.unwrap();
}

/// R2, C1: Helm itself is killed at random moments of upgrades and of removals: recovered every time, no data removed.
#[tokio::test]
async fn r2_helm_killed_over_and_over() {
    let app = TestApp::new().await;
    app.worker(provisioner(&app, Duration::from_secs(60)).await);
    let mut dice = StdRng::seed_from_u64(50);
    let member = app.client("member");
    let id = member
        .ask("postgres", "victim", json!({"storage_gb": 1}))
        .await;
    app.wait(&id, &["ready"]).await;
    let (namespace, release) = place(&app, &id).await;
    let claims = || {
        kubectl(&[
            "-n",
            &namespace,
            "get",
            "pvc",
            "-o",
            "jsonpath={.items[*].metadata.uid}",
        ])
    };
    let uid = claims();
    assert!(!uid.is_empty());
    let rounds = if long() { 50 } else { 6 };
    let mut killed = 0;
    for n in 0..rounds {
        let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
        let patch = member
            .request("PATCH", &format!("/api/v1/instances/{id}"))
            .header("if-match", format!("\"{}\"", page["version"]))
            .json(&json!({"parameters": {"max_connections": 50 + n}}));
        let (status, body) = member.send(patch).await;
        assert_eq!(status, 200, "{body}");
        let wait = Duration::from_millis(dice.random_range(0..250));
        let began = Instant::now();
        while helms_of(&release).is_empty() && began.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(wait).await;
        for pid in helms_of(&release) {
            killed += usize::from(kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok());
        }
        // Its retry need not wait for the pause between attempts.
        until("recovered", Duration::from_secs(60), async || {
            sqlx::query("update task set run_after = now() where state = 'parked'")
                .execute(&app.db.pool)
                .await
                .unwrap();
            let page = member.get(&format!("/api/v1/instances/{id}")).await.1;
            page["state"] == "ready"
                && page["parameters"]["max_connections"] == 50 + n
                && app.open_tasks(id.parse().unwrap()).await.is_empty()
        })
        .await;
        assert_eq!(claims(), uid, "no data removed");
    }
    assert!(
        killed * 2 >= rounds as usize,
        "Helm was hit: {killed} of {rounds}"
    );
    // A removal that is cut off is finished, too.
    member.delete(&format!("/api/v1/instances/{id}")).await;
    let began = Instant::now();
    while helms_of(&release).is_empty() && began.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(60)).await;
    for pid in helms_of(&release) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    until("removed", Duration::from_secs(60), async || {
        sqlx::query("update task set run_after = now() where state = 'parked'")
            .execute(&app.db.pool)
            .await
            .unwrap();
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "deleted"
    })
    .await;
}

/// R3: a worker is stopped past its lease and continued: its late writes change nothing.
#[tokio::test]
async fn r3_a_worker_that_was_frozen_changes_nothing_afterwards() {
    let app = TestApp::new().await;
    let frozen = worker(&app);
    let member = app.client("member");
    let id = member
        .ask("cache", "frozen", json!({"memory_mb": 64}))
        .await;
    until("it has begun", Duration::from_secs(30), async || {
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "provisioning"
    })
    .await;
    frozen.signal(Signal::SIGSTOP);
    let other = worker(&app);
    until("taken over", Duration::from_secs(60), async || {
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "ready"
    })
    .await;
    let count = async || -> (i64, i64, i64) {
        sqlx::query_as("select (select count(*) from instance_event), (select count(*) from task_history), (select version from instance)")
            .fetch_one(&app.db.pool)
            .await
            .unwrap()
    };
    let before = count().await;
    frozen.signal(Signal::SIGCONT);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(count().await, before, "the fence held");
    drop(other);
}

// --- Postgres ---------------------------------------------------------------------------------------------------------------

/// Postgres is cut off and then silent, with work in flight: nothing is lost, nothing fails, everything ends by itself.
#[tokio::test]
async fn a_database_that_is_cut_and_silent_loses_no_work() {
    let app = TestApp::new().await;
    let url: url::Url = app.db.dsn.parse().unwrap();
    let target = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432))
        .parse()
        .unwrap();
    let proxy = TcpProxy::before(target).await;
    let mut dsn = url.clone();
    dsn.set_ip_host(proxy.address.ip()).unwrap();
    dsn.set_port(Some(proxy.address.port())).unwrap();
    let pool = db::connect(&crate::support::db::settings(dsn.as_str()))
        .await
        .unwrap();
    let stop = app.worker_on(
        pool,
        Arc::new(svcforge::provision::scripted::Scripted::new(
            Duration::from_millis(300),
        )),
    );
    let member = app.client("member");
    let mut ids = vec![];
    for i in 0..12 {
        ids.push(member.ask("cache", &format!("d{i}"), json!({})).await);
    }
    for wire in [Wire::Cut, Wire::Silent, Wire::Cut] {
        tokio::time::sleep(Duration::from_millis(250)).await;
        proxy.set(wire);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        proxy.set(Wire::Pass);
    }
    for id in &ids {
        let page = app.wait(id, &["ready", "failed"]).await;
        assert_eq!(page["state"], "ready", "{page:#}");
    }
    stop.cancel();
}

// --- a seeded mix -----------------------------------------------------------------------------------------------------------

/// People, ticks, faults and dying workers at random, from a seed; then quiet; then the invariants.
#[tokio::test]
async fn a_seeded_mix_keeps_the_invariants() {
    let seed = std::env::var("SVCFORGE_MIX_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(7);
    let span = Duration::from_secs(
        std::env::var("SVCFORGE_MIX_S")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or(15),
    );
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let mut dice = StdRng::seed_from_u64(seed);
    let scripted = Arc::new(svcforge::provision::scripted::Scripted::new(
        Duration::from_millis(40),
    ));
    let mut workers = [app.worker(scripted.clone()), app.worker(scripted.clone())];
    let (member, admin) = (app.client("member"), app.client("admin"));
    let mut ids: Vec<String> = vec![];
    let (mut asked, mut version, mut halted) = (0, 0, false);
    let began = Instant::now();
    while began.elapsed() < span {
        match dice.random_range(0..12) {
            0..=2 if ids.len() < 60 => {
                asked += 1;
                ids.push(member.ask("cache", &format!("m{asked}"), json!({})).await);
            }
            3 if !ids.is_empty() => {
                let id = &ids[dice.random_range(0..ids.len())];
                member.delete(&format!("/api/v1/instances/{id}")).await;
            }
            4 if !ids.is_empty() => {
                let id = &ids[dice.random_range(0..ids.len())];
                member
                    .post(
                        &format!(
                            "/api/v1/instances/{id}/{}",
                            ["upgrade", "retry"][dice.random_range(0..2)]
                        ),
                        json!({}),
                    )
                    .await;
            }
            5 => {
                let word = if halted { "resume" } else { "halt" };
                halted = !halted;
                admin
                    .post(
                        &format!("/api/v1/rollouts/cache/{word}"),
                        json!({"reason": "the mix"}),
                    )
                    .await;
            }
            6 if version < 20 => {
                version += 1;
                app.make_version(
                    &format!("1.{version}.0"),
                    true,
                    json!({"max_in_flight": 1 + version % 3}),
                )
                .await;
            }
            7 => {
                let fault = match dice.random_range(0..3) {
                    0 => svcforge::provision::Fault::Failed("the mix".into()),
                    1 => svcforge::provision::Fault::Rejected("the mix".into()),
                    _ => svcforge::provision::Fault::Outage {
                        what: "the mix".into(),
                        error: "away".into(),
                    },
                };
                scripted.fail_next(fault);
            }
            8 => {
                let n = dice.random_range(0..workers.len());
                workers[n].cancel();
                workers[n] = app.worker(scripted.clone());
            }
            9 if !ids.is_empty() => {
                let id = ids[dice.random_range(0..ids.len())]
                    .parse::<uuid::Uuid>()
                    .unwrap();
                sqlx::query("update instance set expires_at = now() where id = $1")
                    .bind(id)
                    .execute(&app.db.pool)
                    .await
                    .unwrap();
            }
            _ => {
                // The cluster shows whatever is ready, but for a release that somebody removed.
                let mut listing = svcforge::cluster::Listing::default();
                let rows: Vec<(String, String, Option<i32>)> = sqlx::query_as("select release_namespace, release_name, release_revision from instance where state <> 'deleted'").fetch_all(&app.db.pool).await.unwrap();
                for (namespace, name, revision) in rows {
                    if dice.random_range(0..15) > 0 {
                        listing.releases.insert(
                            (namespace, name),
                            crate::support::reconciler::seen(revision.unwrap_or(1), Some("me")),
                        );
                    }
                }
                *r.releases.listing.lock().unwrap() = listing;
                r.tick().await;
            }
        }
        let broken: i64 = sqlx::query_scalar(
            "select (select count(*) from (select instance_id from task where state = 'running' group by 1 having count(*) > 1) x)
                  + (select count(*) from task k join rollout ro on ro.service_type = k.rollout_type where k.slot_since is not null
                     group by ro.service_type, ro.max_in_flight having count(*) > 3 limit 1)",
        )
        .fetch_optional(&app.db.pool)
        .await
        .unwrap()
        .flatten()
        .unwrap_or(0);
        assert_eq!(broken, 0, "seed {seed}");
        tokio::time::sleep(Duration::from_millis(dice.random_range(0..25))).await;
    }
    // Quiet: nothing fails any more. Everything ends, and everything ready gets to the catalog's version.
    scripted.forget();
    until("quiet", Duration::from_secs(120), async || {
        let rows: Vec<(String, String, Option<i32>)> = sqlx::query_as("select release_namespace, release_name, release_revision from instance where state <> 'deleted'").fetch_all(&app.db.pool).await.unwrap();
        let mut listing = svcforge::cluster::Listing::default();
        for (namespace, name, revision) in rows {
            listing.releases.insert((namespace, name), crate::support::reconciler::seen(revision.unwrap_or(1), Some("me")));
        }
        *r.releases.listing.lock().unwrap() = listing;
        // A final failure of before may have halted it since.
        admin.post("/api/v1/rollouts/cache/resume", json!({"reason": "quiet"})).await;
        r.tick_well().await;
        sqlx::query("update task set run_after = now() where state = 'parked'").execute(&app.db.pool).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let left: i64 = sqlx::query_scalar(
            "select (select count(*) from task)
                  + (select count(*) from standing where state = 'ready' and target_id <> entry_revision_id and hold_kind is null)",
        )
        .fetch_one(&app.db.pool)
        .await
        .unwrap();
        left == 0
    })
    .await;
    let (states, instances): (Value, i64) = sqlx::query_as(
        "select (select jsonb_agg(distinct state) from instance), (select count(*) from instance)",
    )
    .fetch_one(&app.db.pool)
    .await
    .unwrap();
    assert_eq!(
        instances, asked,
        "one accepted request, one instance; seed {seed}"
    );
    for state in states.as_array().unwrap() {
        assert!(
            ["ready", "failed", "deleted"].contains(&state.as_str().unwrap()),
            "seed {seed}: {states}"
        );
    }
}

// --- R10 --------------------------------------------------------------------------------------------------------------------

/// A worker whose clock is an hour off: leases and windows read the database's. Needs libfaketime, so it runs with `--long` only.
#[tokio::test]
async fn r10_a_clock_that_is_wrong_moves_neither_leases_nor_windows() {
    let Ok(library) = std::env::var("SVCFORGE_TEST_FAKETIME") else {
        assert!(
            !long(),
            "SVCFORGE_TEST_FAKETIME is not set: run the tests by ./dev test --long"
        );
        return;
    };
    for offset in ["+1h", "-1h"] {
        let app = TestApp::new().await;
        let mut r = Reconciler::new(&app).await;
        // Helm's releases are not what this is about.
        r.cx.releases = None;
        let pool = &app.db.pool;
        let old = app.make_version("0.9.0", false, json!({})).await;
        let parked = app.make_ready("demo", "parked", Some(old)).await.id;
        app.make_version("9.0.0", true, json!({})).await;
        // Open for an hour, in two hours less than half: closed by Postgres' clock; open by one that is an hour or two ahead.
        sqlx::query("update instance set maintenance_window = 'daily ' || to_char(now() at time zone 'UTC' + interval '30 min', 'HH24:MI') || '-' || to_char(now() at time zone 'UTC' + interval '90 min', 'HH24:MI') where id = $1")
            .bind(parked)
            .execute(pool)
            .await
            .unwrap();
        r.tick_well().await;
        let opens = async || -> (String, f64) {
            sqlx::query_as("select state, extract(epoch from run_after - now())::float8 from task where instance_id = $1").bind(parked).fetch_one(pool).await.unwrap()
        };
        let (state, ahead) = opens().await;
        assert!(
            state == "parked" && (1700.0..=1800.0).contains(&ahead),
            "{state}, in {ahead} s"
        );
        let _worker = worker_with(&app, &[("LD_PRELOAD", &library), ("FAKETIME", offset)]);
        // Due before its window: whoever admits asks Postgres what time it is.
        sqlx::query("update task set run_after = now() where instance_id = $1")
            .bind(parked)
            .execute(pool)
            .await
            .unwrap();
        until("it is parked again", Duration::from_secs(30), async || {
            let (state, ahead) = opens().await;
            state == "parked" && ahead > 60.0
        })
        .await;
        let (_, ahead) = opens().await;
        assert!(
            (1600.0..=1800.0).contains(&ahead),
            "{offset}: opens in {ahead} s"
        );
        let id = app
            .client("member")
            .ask("postgres", "leased", json!({}))
            .await;
        let mut seen = 0;
        until("it is ready", Duration::from_secs(60), async || {
            let leases: Vec<(f64,)> = sqlx::query_as("select extract(epoch from lease_until - clock_timestamp())::float8 from task where state = 'running'").fetch_all(pool).await.unwrap();
            for (left,) in leases {
                assert!((0.0..=10.5).contains(&left), "{offset}: a lease of {left} s");
                seen += 1;
            }
            app.client("member").get(&format!("/api/v1/instances/{id}")).await.1["state"] == "ready"
        })
        .await;
        assert!(seen > 0, "no lease was seen");
        assert_eq!(opens().await.0, "parked");
    }
}
