//! Drift on a real API server with real Helm: seen by tick and by watch, put right, never imagined.

use crate::support::{
    TestApp,
    cluster::{clients, helm_bin, kubeconfig, kubectl, provisioner, try_kubectl},
    proxy::until,
    reconciler::{Reconciler, events},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};
use svcforge::{
    cluster::{self, ClusterReleases, Releases},
    config,
    controller::{Controller, Pace},
    db,
    lease::Candidate,
    reconcile,
};
use svcforge_app::domain::EntryKind;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Reads the test cluster, under that installation's eyes, with its marker in place.
async fn releases(app: &TestApp) -> ClusterReleases {
    let installation = db::installation::load(&app.db.pool)
        .await
        .unwrap()
        .id
        .to_string();
    let releases = ClusterReleases {
        clients: clients().await,
        // Each test is an installation of its own: so is the namespace that its marker is in.
        namespace: format!("svcf-own-{}", &installation[24..]),
        installation,
        apps_namespace: "polychrome-apps".into(),
    };
    releases.ensure_marker().await.unwrap();
    releases
}

async fn with_cluster() -> (TestApp, Reconciler, ClusterReleases) {
    let app = TestApp::new().await;
    app.worker(provisioner(&app, Duration::from_secs(60)).await);
    let mut r = Reconciler::new(&app).await;
    let releases = releases(&app).await;
    r.cx.installation.clone_from(&releases.installation);
    r.cx.releases = Some(Arc::new(releases.clone()));
    (app, r, releases)
}

fn helm(args: &[&str]) {
    let out = Command::new(helm_bin())
        .args(args)
        .env("KUBECONFIG", kubeconfig())
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "helm {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

fn place(instance: &Value) -> (String, String) {
    let text = |name: &str| instance["release"][name].as_str().unwrap().to_owned();
    (text("namespace"), text("name"))
}

#[tokio::test]
async fn a_release_uninstalled_by_hand_comes_back_within_one_tick() {
    let (app, r, _) = with_cluster().await;
    let member = app.client("member");
    let id = member.ask("cache", "gone", json!({"memory_mb": 64})).await;
    let before = app.wait(&id, &["ready"]).await;
    r.tick_well().await;
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(page["drift"], "present");
    let (namespace, release) = place(&before);
    helm(&["uninstall", &release, "-n", &namespace]);
    let logs = r.tick_well().await;
    let told = events(&logs, "drift.release_missing");
    assert_eq!(
        (told.len(), told[0]["release"].as_str()),
        (1, Some(release.as_str()))
    );
    app.wait(&id, &["provisioning", "ready"]).await;
    let after = app.wait(&id, &["ready"]).await;
    assert_eq!(
        after["chart_version"], before["chart_version"],
        "its own revision"
    );
    assert_eq!(after["drift"], "present", "not what the sweep before saw");
    let labels = kubectl(&[
        "-n",
        &namespace,
        "get",
        "secret",
        "-l",
        &format!("owner=helm,name={release}"),
        "-o",
        "jsonpath={.items[*].metadata.labels.svcforge\\.dev/entry-revision}",
    ]);
    assert!(!labels.is_empty());
    let (_, timeline) = member.get(&format!("/api/v1/instances/{id}/events")).await;
    let told = timeline["items"]
        .as_array()
        .unwrap()
        .iter()
        .any(|e| e["message"].as_str().unwrap().contains("drift: release"));
    assert!(told, "{timeline:#}");
    assert!(events(&r.tick_well().await, "drift.release_missing").is_empty());
}

#[tokio::test]
async fn an_upgrade_by_hand_is_changed_held_and_put_back_by_a_persons_choice() {
    let (app, r, _) = with_cluster().await;
    let member = app.client("member");
    let id = member
        .ask("cache", "touched", json!({"memory_mb": 64}))
        .await;
    let before = app.wait(&id, &["ready"]).await;
    let (namespace, release) = place(&before);
    let chart = crate::support::app::shipped().join("cache/chart");
    helm(&[
        "upgrade",
        &release,
        chart.to_str().unwrap(),
        "-n",
        &namespace,
        "--reuse-values",
        "--set",
        "memoryMb=32",
    ]);
    let logs = r.tick_well().await;
    assert_eq!(events(&logs, "drift.changed").len(), 1);
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(page["drift"], "changed");
    assert!(
        page["hold"].as_str().unwrap().contains("revision 2"),
        "{page}"
    );
    r.tick_well().await;
    assert!(
        app.open_tasks(id.parse().unwrap()).await.is_empty(),
        "it is held, and nothing fights"
    );
    let (status, _) = member
        .post(
            &format!("/api/v1/instances/{id}/drift"),
            json!({"choice": "put_back"}),
        )
        .await;
    assert_eq!(status, 200);
    until("put back", Duration::from_secs(60), async || {
        let page = member.get(&format!("/api/v1/instances/{id}")).await.1;
        page["state"] == "ready" && page["release"]["revision"] == 3
    })
    .await;
    r.tick_well().await;
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(
        (page["drift"].as_str(), page["hold"].as_str()),
        (Some("present"), None)
    );
    let memory = kubectl(&["-n", &namespace, "get", "deploy,sts", "-o", "yaml"]);
    assert!(memory.contains("64"), "what was asked is there again");
}

/// Uninstalled and installed again by hand, its numbers begin anew: it is not the release that was there. It can be put back, and it
/// cannot be accepted.
#[tokio::test]
async fn a_release_that_somebody_replaced_is_put_back_and_never_accepted() {
    let (app, r, _) = with_cluster().await;
    let member = app.client("member");
    let id = member
        .ask("cache", "replaced", json!({"memory_mb": 64}))
        .await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    let chart = crate::support::app::shipped().join("cache/chart");
    helm(&["uninstall", &release, "-n", &namespace]);
    helm(&[
        "install",
        &release,
        chart.to_str().unwrap(),
        "-n",
        &namespace,
        "--set",
        "memoryMb=32,credentials.secretName=x",
    ]);
    let logs = r.tick_well().await;
    assert_eq!(events(&logs, "drift.changed").len(), 1, "{logs:#?}");
    assert!(events(&logs, "drift.release_missing").is_empty());
    let drift = format!("/api/v1/instances/{id}/drift");
    let choose = async |choice: Value| member.post(&drift, choice).await;
    let (status, body) = choose(json!({"choice": "accept"})).await;
    assert_eq!(status, 409, "{body}");
    let (status, body) = choose(json!({"choice": "put_back"})).await;
    assert_eq!(status, 200, "{body}");
    until("put back", Duration::from_secs(60), async || {
        let page = member.get(&format!("/api/v1/instances/{id}")).await.1;
        page["state"] == "ready" && page["release"]["revision"] == 2
    })
    .await;
    r.tick_well().await;
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(
        (page["drift"].as_str(), page["hold"].as_str()),
        (Some("present"), None)
    );
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

/// The same of a definition: what a person made in its place, and what they added, is gone after it.
#[tokio::test]
async fn a_definition_that_somebody_replaced_is_put_back() {
    let (app, r, _) = with_cluster().await;
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    tokio::spawn(controller().await.run(stop));
    let member = app.client("member");
    let asked = json!({"image": "nginx:1", "env": {"A": "1"}});
    let id = member.ask("web-service", "replaced-too", asked).await;
    let (namespace, name) = place(&app.wait(&id, &["ready"]).await);
    kubectl(&["-n", &namespace, "delete", "svcdef", &name]);
    apply(&[
        json!({"apiVersion": "polychrome.dev/v1alpha1", "kind": "ServiceDefinition", "metadata": {"name": name, "namespace": namespace},
               "spec": {"image": "nginx:2", "env": {"A": "2", "MINE": "x"}, "description": "mine"}}),
    ]);
    let logs = r.tick_well().await;
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(events(&logs, "drift.changed").len(), 1, "{page:#}");
    let drift = format!("/api/v1/instances/{id}/drift");
    let (status, body) = member.post(&drift, json!({"choice": "put_back"})).await;
    assert_eq!(status, 200, "{body}");
    until("put back", Duration::from_secs(60), async || {
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "ready"
    })
    .await;
    let found = kubectl(&["-n", &namespace, "get", "svcdef", &name, "-o", "json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(
        json!([
            found["spec"]["image"],
            found["spec"]["env"],
            found["spec"]["description"],
            found["metadata"]["labels"]["svcforge.dev/instance"]
        ]),
        json!(["nginx:1", {"A": "1"}, null, id])
    );
    r.tick_well().await;
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(page["drift"], "present", "{page:#}");
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

async fn controller() -> Controller {
    Controller {
        clients: clients().await,
        namespace: "polychrome-apps".into(),
        pace: Pace::default(),
    }
}

/// The watch makes it seconds; the tick remains the guarantee (here it comes once an hour).
#[tokio::test]
async fn the_watch_shows_drift_within_seconds() {
    let (app, r, releases) = with_cluster().await;
    let member = app.client("member");
    let id = member
        .ask("cache", "watched", json!({"memory_mb": 64}))
        .await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    let (_tell, leading) = watch::channel(Some(r.cx.leading));
    let stop = CancellationToken::new();
    let mut cx = r.cx.clone();
    cx.rules.interval = Duration::from_secs(3600);
    let running = tokio::spawn(reconcile::run(
        move |_| cx.clone(),
        Some(releases),
        leading,
        app.wake.changed.clone(),
        stop.clone(),
    ));
    until("the first tick", Duration::from_secs(20), async || {
        member.get(&format!("/api/v1/instances/{id}")).await.1["drift"] == "present"
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    helm(&["uninstall", &release, "-n", &namespace]);
    let began = std::time::Instant::now();
    until("seen by the watch", Duration::from_secs(10), async || {
        let page = member
            .get(&format!("/api/v1/instances/{id}/events"))
            .await
            .1;
        page["items"]
            .as_array()
            .unwrap()
            .iter()
            .any(|e| e["message"].as_str().unwrap().contains("drift: release"))
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(10));
    app.wait(&id, &["ready"]).await;
    // The same for what is a definition.
    let controlling = tokio::spawn(controller().await.run(stop.clone()));
    let asked = json!({"image": "nginx:1"});
    let id = member.ask("web-service", "watched-too", asked).await;
    let (namespace, name) = place(&app.wait(&id, &["ready"]).await);
    kubectl(&["-n", &namespace, "delete", "svcdef", &name]);
    until("it is back", Duration::from_secs(10), async || {
        try_kubectl(&["-n", &namespace, "get", "svcdef", &name]).0
    })
    .await;
    app.wait(&id, &["ready"]).await;
    controlling.abort();
    stop.cancel();
    running.await.unwrap();
}

fn apply(documents: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": documents}).to_string();
    let mut child = Command::new(crate::support::cluster::bin("kubectl"))
        .arg("--kubeconfig")
        .arg(kubeconfig())
        .args(["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(list.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
}

fn record(namespace: &str, name: &str, revision: &str, status: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
           "metadata": {"name": format!("sh.helm.release.v1.{name}.v{revision}"), "namespace": namespace,
                        "labels": {"owner": "helm", "name": name, "version": revision, "status": status}}})
}

fn namespace() -> String {
    let name = format!("t{}", &svcforge::ids::new_id().simple().to_string()[20..]);
    kubectl(&["create", "namespace", &name]);
    name
}

/// C8: every page is read. C7: pending is present. A label that cannot be read makes only its own release Unknown.
#[tokio::test]
async fn more_than_a_page_pending_ones_and_a_malformed_label() {
    let app = TestApp::new().await;
    let releases = releases(&app).await;
    let ns = namespace();
    let documents: Vec<Value> = (0..600)
        .map(|i| {
            record(
                &ns,
                &format!("r{i}"),
                "1",
                if i % 2 == 0 {
                    "deployed"
                } else {
                    "pending-upgrade"
                },
            )
        })
        .chain([record(&ns, "odd", "not-a-number", "deployed")])
        .collect();
    apply(&documents);
    let listing = releases.list(&[]).await.unwrap();
    let here = listing.releases.keys().filter(|(n, _)| *n == ns).count();
    assert_eq!(here, 600);
    assert_eq!(
        listing.releases[&(ns.clone(), "r1".to_owned())].status,
        "pending-upgrade"
    );
    let odd: Vec<&str> = listing
        .unreadable
        .keys()
        .filter(|(n, _)| *n == ns)
        .map(|(_, name)| name.as_str())
        .collect();
    assert_eq!(odd, ["odd"]);
    let found = releases.find(EntryKind::Helm, &ns, "r599").await.unwrap();
    assert_eq!(found.unwrap().revision, 1);
    assert_eq!(
        releases.find(EntryKind::Helm, &ns, "r600").await.unwrap(),
        None
    );
    kubectl(&["delete", "namespace", &ns, "--wait=false"]);
}

#[tokio::test]
async fn a_listing_without_the_marker_is_not_believed() {
    let (app, r, releases) = with_cluster().await;
    let made = app.make_ready("demo", "x", None).await;
    kubectl(&["-n", &releases.namespace, "delete", "secret", "--all"]);
    let (ticked, logs) = r.tick().await;
    assert_eq!(ticked.failed, ["drift"]);
    assert!(
        events(&logs, "check.failed")[0]["error"]
            .as_str()
            .unwrap()
            .contains("marker")
    );
    assert!(app.open_tasks(made.id).await.is_empty());
    releases.ensure_marker().await.unwrap();
    r.tick_well().await;
    assert_eq!(
        app.open_tasks(made.id).await.len(),
        1,
        "with it an empty rest is true"
    );
}

/// A namespace without permission makes only itself Unknown.
#[tokio::test]
async fn a_namespace_that_may_not_be_read_is_unknown_and_the_rest_goes_on() {
    let app = TestApp::new().await;
    let mut r = Reconciler::new(&app).await;
    let full = releases(&app).await;
    let may = app.make_ready("may", "gone", None).await;
    let not = app.make_ready("maynot", "dark", None).await;
    for ns in [&may.namespace, &not.namespace] {
        try_kubectl(&["create", "namespace", ns]);
    }
    let user = format!("u-{}", &full.installation[24..]);
    apply(&[
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": user, "namespace": may.namespace},
               "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": user, "namespace": may.namespace},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
               "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]}),
    ]);
    let mut file: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(kubeconfig()).unwrap()).unwrap();
    file["users"][0]["user"]["as"] = json!(user);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig.json");
    std::fs::write(&path, file.to_string()).unwrap();
    let settings = config::Cluster {
        kubeconfig: Some(path),
        ..Default::default()
    };
    let limited = cluster::connect(&settings).await.unwrap().unwrap();
    r.cx.releases = Some(Arc::new(ClusterReleases {
        clients: limited,
        ..full
    }));
    r.tick_well().await;
    let (_, page) = app.client("admin").get("/api/v1/drift").await;
    assert_eq!(app.open_tasks(may.id).await.len(), 1, "{page:#}");
    assert!(app.open_tasks(not.id).await.is_empty());
    let unknown: BTreeSet<&str> = page["unknown"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| i["name"].as_str().unwrap())
        .collect();
    assert_eq!(unknown, BTreeSet::from(["dark"]), "{page}");
    assert!(
        page["unknown"][0]["detail"]
            .as_str()
            .unwrap()
            .contains(&not.namespace)
    );
}

/// `svcforge adopt` labels a release made before the labels existed; one of somebody else's is refused.
#[tokio::test]
async fn adopt_labels_what_carries_no_label_and_nothing_else() {
    let app = TestApp::new().await;
    let clients = clients().await;
    cluster::bind(&clients, &app.db.pool).await.unwrap();
    let installation = db::installation::load(&app.db.pool)
        .await
        .unwrap()
        .id
        .to_string();
    let one = app.make_ready("demo", "old", None).await;
    try_kubectl(&["create", "namespace", &one.namespace]);
    apply(&[record(&one.namespace, &one.release, "4", "deployed")]);
    let adopt = || {
        Command::new(crate::support::cluster::svcforge_bin())
            .args([
                "adopt",
                "--reason",
                "made before labels",
                "--instance",
                &one.id.to_string(),
            ])
            .arg(format!("--kubeconfig={}", kubeconfig().display()))
            .env("SVCFORGE_PG_DSN", &app.db.dsn)
            .output()
            .unwrap()
    };
    let out = adopt();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let label = kubectl(&[
        "-n",
        &one.namespace,
        "get",
        "secret",
        "-l",
        &format!("name={}", one.release),
        "-o",
        "jsonpath={.items[0].metadata.labels.svcforge\\.dev/installation}",
    ]);
    assert_eq!(label, installation);
    let (revision, audited): (i32, i64) = sqlx::query_as("select release_revision, (select count(*) from audit where action = 'release.adopt') from instance where id = $1").bind(one.id).fetch_one(&app.db.pool).await.unwrap();
    assert_eq!((revision, audited), (4, 1));
    kubectl(&[
        "-n",
        &one.namespace,
        "label",
        "--overwrite",
        "secret",
        "-l",
        &format!("name={}", one.release),
        "svcforge.dev/installation=other",
    ]);
    let out = adopt();
    assert!(!out.status.success());
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("installation other"),
        "names the owner"
    );
    let _ = Candidate::new(&app.db.dsn);
}

/// An orphan left by a deleted row is adopted: another instance takes the release over, the data goes on.
#[tokio::test]
async fn an_orphan_is_adopted_by_an_instance_of_its_own() {
    let (app, r, _) = with_cluster().await;
    let member = app.client("member");
    let id = member.ask("cache", "lost", json!({"memory_mb": 64})).await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    // The row is gone, the release is not: as after a restore of the database.
    app.sql("alter table instance disable trigger instance_guard")
        .await;
    sqlx::query("update instance set state = 'deleted'")
        .execute(&app.db.pool)
        .await
        .unwrap();
    app.sql("alter table instance enable trigger instance_guard")
        .await;
    let logs = r.tick_well().await;
    assert_eq!(events(&logs, "drift.orphan_release").len(), 1);
    let admin = app.client("admin");
    let (_, page) = admin.get("/api/v1/drift").await;
    let orphan = page["orphans"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/drift/orphans/{orphan}/adopt");
    let ask = |team: &str| json!({"team": team, "type": "cache", "name": "found", "parameters": {"memory_mb": 96}, "reason": "it is ours"});
    app.make_team("other").await;
    let (status, body) = admin.post(&path, ask("other")).await;
    assert_eq!(
        (status, body["errors"][0]["pointer"].as_str()),
        (422, Some("/team"))
    );
    let (status, body) = admin.post(&path, ask("demo")).await;
    assert_eq!(status, 202, "{body}");
    let adopted = app
        .wait(body["id"].as_str().unwrap(), &["ready", "failed"])
        .await;
    assert_eq!(
        (adopted["state"].as_str(), place(&adopted)),
        (Some("ready"), (namespace, release)),
        "{adopted:#}"
    );
    assert_eq!(adopted["release"]["revision"], 2);
    assert!(events(&r.tick_well().await, "drift.orphan_release").is_empty());
    assert_eq!(admin.post(&path, ask("demo")).await.0, 409, "once");
}

/// Design §7 and C6: what `on_delete` keeps is listed with its age, for as long as it is there.
#[tokio::test]
async fn what_an_entry_keeps_is_listed_until_it_is_gone() {
    let (app, r, _) = with_cluster().await;
    let catalog = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(crate::support::app::shipped().join("postgres"))
        .arg(catalog.path())
        .status();
    assert!(copied.unwrap().success());
    let entry = catalog.path().join("postgres/entry.yaml");
    let text = std::fs::read_to_string(&entry).unwrap();
    assert!(text.contains("on_delete: wipe"));
    std::fs::write(
        &entry,
        text.replace("on_delete: wipe", "on_delete: keep 30d")
            .replace("chart_version: 1.0.0", "chart_version: 1.0.1"),
    )
    .unwrap();
    let chart = catalog.path().join("postgres/chart/Chart.yaml");
    let text = std::fs::read_to_string(&chart).unwrap();
    std::fs::write(&chart, text.replace("version: 1.0.0", "version: 1.0.1")).unwrap();
    let loaded = svcforge::catalog::load(catalog.path()).unwrap();
    svcforge::catalog::publish(&app.db.pool, &loaded)
        .await
        .unwrap();
    let member = app.client("member");
    let id = member.ask("postgres", "kept", json!({})).await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    let left = async || {
        let (_, drift) = member.get("/api/v1/drift").await;
        let left = drift["leftovers"].as_array().unwrap().clone();
        left.iter()
            .map(|l| {
                assert_eq!((&l["instance"], &l["team"]), (&json!(id), &json!("demo")));
                let day = |at: &Value| {
                    let at: jiff::Timestamp = at.as_str().unwrap().parse().unwrap();
                    at.as_second() / 86_400
                };
                assert_eq!(day(&l["keep_until"]) - day(&l["kept_at"]), 30);
                l["name"].as_str().unwrap().to_owned()
            })
            .collect::<BTreeSet<_>>()
    };
    assert!(left().await.is_empty(), "it lives");
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
    let (volume, secret) = (
        format!("data-{release}-0"),
        format!("{release}-credentials"),
    );
    r.tick_well().await;
    assert_eq!(left().await, [volume.clone(), secret.clone()].into());
    kubectl(&["-n", &namespace, "delete", "pvc", &volume]);
    r.tick_well().await;
    assert_eq!(left().await, [secret.clone()].into());
    // Another object of that name is another one.
    kubectl(&["-n", &namespace, "delete", "secret", &secret]);
    kubectl(&["-n", &namespace, "create", "secret", "generic", &secret]);
    r.tick_well().await;
    assert!(left().await.is_empty());
    let other = app.client("stranger").get("/api/v1/drift").await.1;
    assert_eq!(other["leftovers"], json!([]), "another team's");
}
