//! The real thing: Helm and a Kubernetes API. What the main job promises, and what it must never do.

use crate::support::{
    TestApp,
    app::shipped,
    cluster::{clients, kubectl, provisioner, try_kubectl},
    proxy::until,
};
use serde_json::{Value, json};
use std::{fs, time::Duration};
use svcforge::{
    catalog, cluster,
    controller::{Controller, Pace},
    db,
};
use tokio_util::sync::CancellationToken;

async fn with_worker() -> TestApp {
    let app = TestApp::new().await;
    let provisioner = provisioner(&app, Duration::from_secs(60)).await;
    app.worker(provisioner);
    app
}

fn place(instance: &Value) -> (String, String) {
    let text = |name: &str| instance["release"][name].as_str().unwrap().to_owned();
    (text("namespace"), text("name"))
}

#[tokio::test]
async fn every_shipped_chart_becomes_ready_and_leaves_nothing() {
    let app = with_worker().await;
    let member = app.client("member");
    let mut ids = vec![];
    for (service_type, parameters) in [
        ("postgres", json!({"storage_gb": 3})),
        ("cache", json!({"memory_mb": 64})),
        (
            "web",
            json!({"image": "ghcr.io/x/y:1", "replicas": 3, "env": {"A": "0123", "B": "1e5", "C": "on"}}),
        ),
    ] {
        ids.push(
            member
                .ask(service_type, &format!("my-{service_type}"), parameters)
                .await,
        );
    }
    let mut namespace = String::new();
    for id in &ids {
        let instance = app.wait(id, &["ready", "failed"]).await;
        assert_eq!(instance["state"], "ready", "{instance:#}");
        assert_eq!(
            (
                instance["readiness"]["verdict"].as_str(),
                instance["release"]["revision"].as_i64()
            ),
            (Some("complete"), Some(1)),
            "{instance:#}"
        );
        namespace = place(&instance).0;
    }
    let sts = kubectl(&[
        "-n",
        &namespace,
        "get",
        "statefulset,pvc",
        "-o",
        "jsonpath={.items[*].status.readyReplicas} {.items[*].status.phase}",
    ]);
    assert_eq!(sts.trim(), "1 Bound");
    let env = kubectl(&[
        "-n",
        &namespace,
        "get",
        "deploy",
        "-l",
        "app.kubernetes.io/name=web",
        "-o",
        "jsonpath={.items[0].spec.template.spec.containers[0].env}",
    ]);
    let env: Value = serde_json::from_str(&env).unwrap();
    assert_eq!(
        env,
        json!([{"name": "A", "value": "0123"}, {"name": "B", "value": "1e5"}, {"name": "C", "value": "on"}, {"name": "PORT", "value": "8080"}]),
        "C28: strings arrive as given"
    );
    for id in &ids {
        assert_eq!(
            member.delete(&format!("/api/v1/instances/{id}")).await.0,
            202
        );
    }
    for id in &ids {
        app.wait(id, &["deleted"]).await;
    }
    let left = kubectl(&[
        "-n",
        &namespace,
        "get",
        "all,pvc,secret,configmap",
        "-o",
        "name",
    ]);
    let left: Vec<&str> = left
        .lines()
        .filter(|l| *l != "configmap/kube-root-ca.crt")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_definition_is_applied_and_removed() {
    let app = with_worker().await;
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let controller = Controller {
        clients: clients().await,
        namespace: "polychrome-apps".into(),
        pace: Pace::default(),
    };
    tokio::spawn(controller.run(stop));
    let member = app.client("member");
    let id = member
        .ask(
            "web-service",
            "ws",
            json!({"image": "nginx:1", "port": 9000}),
        )
        .await;
    let (namespace, name) = place(&app.wait(&id, &["ready"]).await);
    let spec = kubectl(&[
        "-n",
        &namespace,
        "get",
        "svcdef",
        &name,
        "-o",
        "jsonpath={.spec.image} {.spec.port} {.spec.replicas} {.spec.owner}",
    ]);
    assert_eq!(spec, "nginx:1 9000 1 team:demo");
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
    assert!(!try_kubectl(&["-n", &namespace, "get", "svcdef", &name]).0);
}

/// Whoever waits for an object that somebody has removed would wait until the deadline.
#[tokio::test]
async fn a_definition_that_is_removed_before_it_serves_is_applied_again() {
    let app = with_worker().await;
    let member = app.client("member");
    let id = member
        .ask(
            "web-service",
            "ws",
            json!({"image": "chaos.svcforge.dev/never-ready"}),
        )
        .await;
    let (namespace, name) = place(&member.get(&format!("/api/v1/instances/{id}")).await.1);
    let uid = || {
        try_kubectl(&[
            "-n",
            &namespace,
            "get",
            "svcdef",
            &name,
            "-o",
            "jsonpath={.metadata.uid}",
        ])
    };
    let waiting = async || {
        let (_, tasks) = member.get(&format!("/api/v1/instances/{id}/tasks")).await;
        let steps = tasks["items"][0]["steps"].as_array().unwrap().clone();
        steps
            .last()
            .is_some_and(|s| s["name"] == "Wait until it serves" && s["state"] == "running")
    };
    until("it waits", Duration::from_secs(30), waiting).await;
    let before = uid();
    assert!(before.0);
    kubectl(&["-n", &namespace, "delete", "svcdef", &name]);
    until(
        "it was applied again",
        Duration::from_secs(30),
        async || {
            let now = uid();
            now.0 && now.1 != before.1
        },
    )
    .await;
    let (_, events) = member.get(&format!("/api/v1/instances/{id}/tasks")).await;
    assert!(
        events.to_string().contains("before it served"),
        "{events:#}"
    );
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

#[tokio::test]
async fn credentials_survive_upgrade_and_repair_and_are_kept_nowhere_else() {
    let app = with_worker().await;
    let member = app.client("member");
    let id = member.ask("cache", "kept", json!({})).await;
    app.wait(&id, &["ready"]).await;
    let reveal = || async {
        let (status, shown) = member
            .get(&format!("/api/v1/instances/{id}/connection?reveal=true"))
            .await;
        assert_eq!(status, 200, "{shown:#}");
        shown["fields"]
            .as_array()
            .unwrap()
            .iter()
            .find(|f| f["name"] == "Password")
            .unwrap()["value"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let password = reveal().await;
    assert_eq!(password.len(), 32);
    let etag = member
        .request("GET", &format!("/api/v1/instances/{id}"))
        .send()
        .await
        .unwrap()
        .headers()["etag"]
        .clone();
    let (status, _) = member
        .send(
            member
                .request("PATCH", &format!("/api/v1/instances/{id}"))
                .header("if-match", etag)
                .json(&json!({"parameters": {"memory_mb": 256}})),
        )
        .await;
    assert_eq!(status, 200);
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while member.get(&format!("/api/v1/instances/{id}")).await.1["release"]["revision"] != 2
        || app.wait(&id, &["ready", "upgrading"]).await["state"] != "ready"
    {
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(reveal().await, password);
    // A canary in every table: found nowhere (A15).
    let tables: Vec<String> = sqlx::query_scalar("select relname::text from pg_class c join pg_namespace n on n.oid = relnamespace where nspname = 'public' and relkind = 'r'")
        .fetch_all(&app.db.pool)
        .await
        .unwrap();
    for table in tables {
        let found: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "select count(*) from {table} t where t::text like '%' || $1 || '%'"
        )))
        .bind(&password)
        .fetch_one(&app.db.pool)
        .await
        .unwrap();
        assert_eq!(found, 0, "{table}");
    }
}

#[tokio::test]
async fn twenty_at_once_all_ready_one_release_each() {
    let app = with_worker().await;
    let member = app.client("member");
    let ids = futures::future::join_all((0..20).map(|n| {
        let member = app.client("member");
        async move { member.ask("cache", &format!("many-{n}"), json!({})).await }
    }))
    .await;
    let mut namespace = String::new();
    for id in &ids {
        namespace = place(&app.wait(id, &["ready"]).await).0;
    }
    let versions = kubectl(&[
        "-n",
        &namespace,
        "get",
        "secret",
        "-l",
        "owner=helm",
        "-o",
        "jsonpath={.items[*].metadata.labels.version}",
    ]);
    assert_eq!(
        versions.split_whitespace().collect::<Vec<_>>(),
        vec!["1"; 20],
        "one revision each: never two Helms on one release"
    );
    drop(member);
}

/// N1: a release, a namespace, a Secret of that name that is not ours is refused, its owner named, untouched.
#[tokio::test]
async fn n1_what_is_not_ours_is_not_touched() {
    let app = TestApp::new().await;
    let member = app.client("member");
    let id = member.ask("cache", "c", json!({})).await;
    let (namespace, release) = place(&member.get(&format!("/api/v1/instances/{id}")).await.1);
    kubectl(&["create", "namespace", &namespace]);
    app.worker(provisioner(&app, Duration::from_secs(30)).await);
    let failed = app.wait(&id, &["failed"]).await;
    let error = failed["last_error"].as_str().unwrap();
    assert!(
        error.contains(&format!("namespace {namespace} is not svcforge's"))
            && error.contains("not touched"),
        "{error}"
    );

    // The namespace becomes ours; now a release of that name belongs to a person.
    let installation = db::installation::load(&app.db.pool)
        .await
        .unwrap()
        .id
        .to_string();
    kubectl(&[
        "label",
        "namespace",
        &namespace,
        &format!("svcforge.dev/installation={installation}"),
    ]);
    let chart = shipped().join("web/chart");
    let helm = |args: &[&str]| {
        let out = std::process::Command::new(crate::support::cluster::helm_bin())
            .arg(format!(
                "--kubeconfig={}",
                crate::support::cluster::kubeconfig().display()
            ))
            .args(["-n", &namespace])
            .args(args)
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
    };
    helm(&[
        "install",
        &release,
        chart.to_str().unwrap(),
        "--set",
        "image=mine:1",
    ]);
    // The release's record and what its Deployment is asked to be; its status goes on moving by itself.
    let theirs = || {
        let record = kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            "-l",
            "owner=helm",
            "-o",
            "jsonpath={.items[*].metadata.resourceVersion}",
        ]);
        let asked = kubectl(&[
            "-n",
            &namespace,
            "get",
            "deploy",
            &release,
            "-o",
            "jsonpath={.metadata.uid} {.metadata.generation}",
        ]);
        (record, asked)
    };
    let before = theirs();
    member
        .post(&format!("/api/v1/instances/{id}/retry"), json!({}))
        .await;
    let until = std::time::Instant::now() + Duration::from_secs(20);
    let error = loop {
        let failed = app.wait(&id, &["failed"]).await;
        let error = failed["last_error"].as_str().unwrap().to_owned();
        if error.contains("release") || std::time::Instant::now() > until {
            break error;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    };
    assert!(
        error.contains(&format!("release {release}")) && error.contains("belongs to somebody else"),
        "{error}"
    );
    assert_eq!(before, theirs());
    // Nor is it removed with the instance.
    member.delete(&format!("/api/v1/instances/{id}")).await;
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !member.get(&format!("/api/v1/instances/{id}")).await.1["last_error"]
        .as_str()
        .unwrap_or_default()
        .contains("belongs to")
    {
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(try_kubectl(&["-n", &namespace, "get", "deploy", &release]).0);
}

/// N2: a database is bound to one cluster.
#[tokio::test]
async fn n2_another_cluster_is_refused() {
    let app = TestApp::new().await;
    let clients = clients().await;
    cluster::bind(&clients, &app.db.pool).await.unwrap();
    cluster::bind(&clients, &app.db.pool)
        .await
        .expect("the same one again");
    sqlx::query("update installation set cluster_uid = 'another'")
        .execute(&app.db.pool)
        .await
        .unwrap();
    let error = cluster::bind(&clients, &app.db.pool)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("belongs to another cluster"), "{error}");
}

/// A catalog with one chart, whose template is `template`.
async fn publish_chart(app: &TestApp, version: &str, template: &str) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("x/chart/templates")).unwrap();
    fs::write(
        dir.path().join("x/entry.yaml"),
        format!(
            "type: x\nkind: helm\ntitle: X\nsummary: s\nchart: chart\nchart_version: {version}\n"
        ),
    )
    .unwrap();
    fs::write(
        dir.path().join("x/chart/Chart.yaml"),
        format!("apiVersion: v2\nname: x\nversion: {version}\n"),
    )
    .unwrap();
    fs::write(dir.path().join("x/chart/templates/a.yaml"), template).unwrap();
    catalog::publish(&app.db.pool, &catalog::load(dir.path()).unwrap())
        .await
        .unwrap();
}

const CONFIG: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Release.Name }}\"}\ndata: {a: b}\n";

#[tokio::test]
async fn a_chart_that_does_not_render_fails_with_helms_own_words() {
    let app = with_worker().await;
    publish_chart(&app, "1.0.0", "{{ fail \"size must be even\" }}").await;
    let member = app.client("member");
    let id = member.ask("x", "broken", json!({})).await;
    let failed = app.wait(&id, &["failed"]).await;
    assert!(
        failed["last_error"]
            .as_str()
            .unwrap()
            .contains("size must be even"),
        "{failed:#}"
    );
    let (_, tasks) = member.get(&format!("/api/v1/instances/{id}/tasks")).await;
    assert_eq!(
        tasks["items"][0]["attempt"], 1,
        "no second attempt can help"
    );
    let task = tasks["items"][0]["id"].as_str().unwrap();
    assert!(
        member
            .get(&format!("/api/v1/tasks/{task}/log"))
            .await
            .1
            .to_string()
            .contains("size must be even")
    );
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

/// A hook that holds Helm for a while: something to kill.
const SLOW: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Release.Name }}\"}\n---\napiVersion: batch/v1\nkind: Job\nmetadata:\n  name: \"{{ .Release.Name }}-hook\"\n  annotations: {helm.sh/hook: \"pre-install,pre-upgrade\", helm.sh/hook-delete-policy: before-hook-creation}\nspec:\n  suspend: true\n  template:\n    spec:\n      restartPolicy: Never\n      securityContext: {runAsNonRoot: true, runAsUser: 1, seccompProfile: {type: RuntimeDefault}}\n      containers: [{name: a, image: a, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]\n";

fn helms_of(release: &str) -> Vec<i32> {
    let mut found = vec![];
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let argv = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let argv = String::from_utf8_lossy(&argv).into_owned();
        // Helm itself, not its guard.
        if argv
            .split('\0')
            .next()
            .is_some_and(|a| a.ends_with("/helm") || a.ends_with("/helm3"))
            && argv.contains(release)
        {
            found.push(pid);
        }
    }
    found
}

/// C1, R2: Helm killed -9 in the middle leaves the release pending; the next attempt frees it and goes on, visibly.
#[tokio::test]
async fn c1_a_release_left_pending_is_recovered() {
    let app = TestApp::new().await;
    app.worker(provisioner(&app, Duration::from_secs(120)).await);
    publish_chart(&app, "1.0.0", SLOW).await;
    let member = app.client("member");
    let id = member.ask("x", "killed", json!({})).await;
    let (namespace, release) = place(&member.get(&format!("/api/v1/instances/{id}")).await.1);
    let status = || {
        try_kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            "-l",
            &format!("owner=helm,name={release}"),
            "-o",
            "jsonpath={.items[*].metadata.labels.status}",
        ])
        .1
    };
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !(status().contains("pending-install") && helms_of(&release).len() == 1) {
        assert!(std::time::Instant::now() < until, "{}", status());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for pid in helms_of(&release) {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
    }
    // From here on the hook may finish.
    let hook = format!("{release}-hook");
    let until = std::time::Instant::now() + Duration::from_secs(90);
    while member.get(&format!("/api/v1/instances/{id}")).await.1["state"] != "ready" {
        assert!(
            std::time::Instant::now() < until,
            "{:#}",
            member
                .get(&format!("/api/v1/instances/{id}/events"))
                .await
                .1
        );
        assert!(
            helms_of(&release).len() <= 1,
            "C4: one Helm per instance, ever"
        );
        try_kubectl(&[
            "-n",
            &namespace,
            "patch",
            "job",
            &hook,
            "-p",
            "{\"spec\":{\"suspend\":false}}",
        ]);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let events = member
        .get(&format!("/api/v1/instances/{id}/events"))
        .await
        .1
        .to_string();
    assert!(
        events.contains("release.recovered") && events.contains("pending-install"),
        "{events}"
    );
    assert_eq!(
        kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            "-l",
            &format!("owner=helm,name={release},status=deployed"),
            "-o",
            "name"
        ])
        .lines()
        .count(),
        1
    );
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

/// A pending revision that svcforge did not write is a person at work: waited for, said, untouched.
#[tokio::test]
async fn a_persons_own_helm_is_waited_for() {
    let app = TestApp::new().await;
    let stop = app.worker(provisioner(&app, Duration::from_secs(60)).await);
    publish_chart(&app, "1.0.0", CONFIG).await;
    let member = app.client("member");
    let id = member.ask("x", "busy", json!({})).await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    stop.cancel();
    let secret = format!("sh.helm.release.v1.{release}.v1");
    let mut copy: Value = serde_json::from_str(&kubectl(&[
        "-n", &namespace, "get", "secret", &secret, "-o", "json",
    ]))
    .unwrap();
    copy["metadata"] = json!({"name": format!("sh.helm.release.v1.{release}.v2"), "labels": copy["metadata"]["labels"]});
    copy["metadata"]["labels"]["version"] = json!("2");
    copy["metadata"]["labels"]["status"] = json!("pending-upgrade");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), copy.to_string()).unwrap();
    kubectl(&[
        "-n",
        &namespace,
        "create",
        "-f",
        file.path().to_str().unwrap(),
    ]);
    sqlx::query("update instance set state = 'provisioning' where id = $1::uuid")
        .bind(&id)
        .execute(&app.db.pool)
        .await
        .unwrap();
    sqlx::query("update instance set state = 'failed' where id = $1::uuid")
        .bind(&id)
        .execute(&app.db.pool)
        .await
        .unwrap();
    // Even when an attempt of ours had recorded that number: the label tells whose it is.
    sqlx::query(
        "update instance set release_revision = 2, release_token = 999999 where id = $1::uuid",
    )
    .bind(&id)
    .execute(&app.db.pool)
    .await
    .unwrap();
    app.worker(provisioner(&app, Duration::from_secs(60)).await);
    member
        .post(&format!("/api/v1/instances/{id}/retry"), json!({}))
        .await;
    let until = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let task = member.get(&format!("/api/v1/instances/{id}/tasks")).await.1["items"][0].clone();
        if task["waiting_for"].as_str() == Some("a person's own Helm to end") {
            break;
        }
        assert!(std::time::Instant::now() < until, "{task:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(
        kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            &format!("sh.helm.release.v1.{release}.v2"),
            "-o",
            "jsonpath={.metadata.labels.status}"
        ]),
        "pending-upgrade"
    );
}

/// C5: success means that the new spec serves, not that Helm said so.
#[tokio::test]
async fn c5_it_is_not_ready_before_its_workload_serves() {
    let app = TestApp::new().await;
    app.worker(provisioner(&app, Duration::from_secs(6)).await);
    // A pod that no node takes: it can never be ready.
    let stuck = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: \"{{ .Release.Name }}\"}\nspec:\n  selector: {matchLabels: {a: \"{{ .Release.Name }}\"}}\n  template:\n    metadata: {labels: {a: \"{{ .Release.Name }}\"}}\n    spec:\n      nodeSelector: {moon: \"yes\"}\n      securityContext: {runAsNonRoot: true, runAsUser: 1, seccompProfile: {type: RuntimeDefault}}\n      containers: [{name: a, image: a, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]\n";
    publish_chart(&app, "1.0.0", stuck).await;
    sqlx::query("create function one_attempt() returns trigger language plpgsql as $$ begin new.max_attempts := 1; return new; end $$").execute(&app.db.pool).await.unwrap();
    sqlx::query("create trigger one_attempt before insert on task for each row execute function one_attempt()").execute(&app.db.pool).await.unwrap();
    let id = app.client("member").ask("x", "stuck", json!({})).await;
    let failed = app.wait(&id, &["failed", "ready"]).await;
    let error = failed["last_error"].as_str().unwrap_or_default();
    assert!(
        failed["state"] == "failed"
            && error.contains("not serving")
            && error.contains("no node takes a pod"),
        "{failed:#}"
    );
    app.client("member")
        .delete(&format!("/api/v1/instances/{id}"))
        .await;
}

/// R1 at full speed: the worker's process is killed -9 while Helm runs; no Helm outlives it, another worker ends the work.
#[tokio::test]
async fn r1_a_killed_worker_leaves_no_helm_and_the_instance_converges() {
    let app = TestApp::new().await;
    publish_chart(&app, "1.0.0", SLOW).await;
    let run = || {
        std::process::Command::new(crate::support::cluster::svcforge_bin())
            .args([
                "serve",
                "--roles",
                "worker",
                "--listen",
                "127.0.0.1:0",
                "--metrics-port",
                "0",
                "--helm-timeout-s",
                "120",
                "--log",
                "warn",
            ])
            .arg(format!(
                "--kubeconfig={}",
                crate::support::cluster::kubeconfig().display()
            ))
            .arg(format!(
                "--helm-bin={}",
                crate::support::cluster::helm_bin().display()
            ))
            .env("SVCFORGE_PG_DSN", &app.db.dsn)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut doomed = run();
    let member = app.client("member");
    let id = member.ask("x", "doomed", json!({})).await;
    let (namespace, release) = place(&member.get(&format!("/api/v1/instances/{id}")).await.1);
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while helms_of(&release).is_empty()
        || !try_kubectl(&["-n", &namespace, "get", "job", &format!("{release}-hook")]).0
    {
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    doomed.kill().unwrap();
    doomed.wait().unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(25);
    while !helms_of(&release).is_empty() {
        assert!(
            std::time::Instant::now() < until,
            "a Helm outlived its worker"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // In fast time the lease is over soon; a worker of this process takes it up.
    sqlx::query("update task set lease_until = clock_timestamp() - interval '1 minute'")
        .execute(&app.db.pool)
        .await
        .unwrap();
    app.worker(provisioner(&app, Duration::from_secs(120)).await);
    let until = std::time::Instant::now() + Duration::from_secs(90);
    while member.get(&format!("/api/v1/instances/{id}")).await.1["state"] != "ready" {
        assert!(
            std::time::Instant::now() < until,
            "{:#}",
            member
                .get(&format!("/api/v1/instances/{id}/events"))
                .await
                .1
        );
        try_kubectl(&[
            "-n",
            &namespace,
            "patch",
            "job",
            &format!("{release}-hook"),
            "-p",
            "{\"spec\":{\"suspend\":false}}",
        ]);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

/// N1 for volumes: a claim that only looks like the service's own stays.
#[tokio::test]
async fn a_persons_volume_with_a_similar_name_survives() {
    let app = with_worker().await;
    let member = app.client("member");
    let id = member.ask("postgres", "db", json!({})).await;
    let ready = app.wait(&id, &["ready"]).await;
    let (namespace, release) = place(&ready);
    let claim = ready["readiness"]["parts"].to_string();
    assert!(claim.contains("StatefulSet"), "{claim}");
    let mine = format!("backup-{release}-0");
    let file = tempfile::NamedTempFile::new().unwrap();
    let object = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": mine},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    fs::write(file.path(), object.to_string()).unwrap();
    kubectl(&[
        "-n",
        &namespace,
        "create",
        "-f",
        file.path().to_str().unwrap(),
    ]);
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
    assert_eq!(
        kubectl(&["-n", &namespace, "get", "pvc", "-o", "name"]).trim(),
        format!("persistentvolumeclaim/{mine}")
    );
}

/// What the chart says is to be kept does not hold a removal up.
#[tokio::test]
async fn an_object_that_helm_keeps_does_not_hold_a_removal_up() {
    let app = with_worker().await;
    publish_chart(
        &app,
        "1.0.0",
        &CONFIG.replace(
            "metadata: {",
            "metadata: {annotations: {helm.sh/resource-policy: keep}, ",
        ),
    )
    .await;
    let member = app.client("member");
    let id = member.ask("x", "kept", json!({})).await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
    assert!(try_kubectl(&["-n", &namespace, "get", "configmap", &release]).0);
    let (_, drift) = member.get("/api/v1/drift").await;
    let left = &drift["leftovers"];
    assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
    assert_eq!(
        (
            &left[0]["name"],
            &left[0]["instance"],
            &left[0]["keep_until"]
        ),
        (&json!(release), &json!(id), &json!(null))
    );
}

/// N2: Helm gets one context, whatever becomes of the file it came from.
#[test]
fn helms_kubeconfig_holds_one_cluster_only() {
    let dir = tempfile::tempdir().unwrap();
    let two = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "https://a"}}, {"name": "b", "cluster": {"server": "https://b"}}],
        "users": [{"name": "a", "user": {"token": "ta"}}, {"name": "b", "user": {"token": "tb"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}, {"name": "b", "context": {"cluster": "b", "user": "b"}}]});
    let named = dir.path().join("two.yaml");
    fs::write(&named, two.to_string()).unwrap();
    let settings = |context: Option<&str>| svcforge::config::Cluster {
        kubeconfig: Some(named.clone()),
        context: context.map(Into::into),
        in_cluster: false,
    };
    for (context, server, other) in [(None, "https://a", "tb"), (Some("b"), "https://b", "ta")] {
        let out = dir
            .path()
            .join(format!("out-{}", context.unwrap_or("current")));
        cluster::write_for_helm(&settings(context), &out).unwrap();
        let text = fs::read_to_string(&out).unwrap();
        assert!(text.contains(server) && !text.contains(other), "{text}");
    }
    let error = cluster::write_for_helm(&settings(Some("c")), &dir.path().join("c")).unwrap_err();
    assert!(error.to_string().contains("no context \"c\""), "{error}");
}

/// C3: when the first install fails there is no deployed release; trying again works all the same. C2: an upgrade whose hook times
/// out leaves an older `deployed` revision behind a newer failed one; the highest is the truth, and nobody imagines drift.
#[tokio::test]
async fn c2_c3_a_hook_that_times_out() {
    let app = TestApp::new().await;
    publish_chart(&app, "1.0.0", SLOW).await;
    app.worker(provisioner(&app, Duration::from_secs(4)).await);
    let member = app.client("member");
    let id = member.ask("x", "slow-hook", json!({})).await;
    let (namespace, release) = place(&member.get(&format!("/api/v1/instances/{id}")).await.1);
    let statuses = || {
        let text = kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            "-l",
            &format!("owner=helm,name={release}"),
            "--sort-by=.metadata.creationTimestamp",
            "-o",
            "jsonpath={.items[*].metadata.labels.status}",
        ]);
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let due = || {
        sqlx::query("update task set run_after = now() where state = 'parked'")
            .execute(&app.db.pool)
    };
    let let_go = || {
        let job = format!("{release}-hook");
        try_kubectl(&[
            "-n",
            &namespace,
            "patch",
            "job",
            &job,
            "-p",
            "{\"spec\":{\"suspend\":false}}",
        ]);
    };
    crate::support::proxy::until(
        "the first install fails",
        Duration::from_secs(60),
        async || {
            let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
            page["last_error"].is_string() && statuses().contains(&"failed".to_owned())
        },
    )
    .await;
    assert!(!statuses().contains(&"deployed".to_owned()));
    crate::support::proxy::until("trying again works", Duration::from_secs(90), async || {
        due().await.unwrap();
        let_go();
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "ready"
    })
    .await;
    assert_eq!(statuses().last().map(String::as_str), Some("deployed"));
    // The upgrade's hook times out for good.
    publish_chart(&app, "1.1.0", SLOW).await;
    let (status, body) = app
        .client("admin")
        .post(&format!("/api/v1/instances/{id}/upgrade"), json!({}))
        .await;
    assert_eq!(status, 202, "{body}");
    crate::support::proxy::until(
        "the upgrade fails for good",
        Duration::from_secs(120),
        async || {
            due().await.unwrap();
            member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "failed"
        },
    )
    .await;
    let left = statuses();
    assert!(
        left.contains(&"deployed".to_owned()) && left.last().map(String::as_str) == Some("failed"),
        "{left:?}"
    );
    let head = cluster::release::head(&clients().await, &namespace, &release)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(head.status, "failed", "the highest is the truth");
    // Back to what it ran: a rollback is an install of the older entry revision.
    let (status, _) = member
        .post(
            &format!("/api/v1/instances/{id}/rollback"),
            json!({"reason": "1.1.0 hangs"}),
        )
        .await;
    assert_eq!(status, 202);
    crate::support::proxy::until("rolled back", Duration::from_secs(90), async || {
        due().await.unwrap();
        let_go();
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "ready"
    })
    .await;
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(page["chart_version"], "1.0.0");
    assert!(
        page["hold"].as_str().unwrap().contains("1.1.0 hangs"),
        "{page}"
    );
}
