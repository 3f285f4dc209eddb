//! Drift on a real API server with real Helm: seen by tick and by watch, put right, never imagined.

mod adopted;
mod listed;
mod repaired;

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

async fn controller() -> Controller {
    Controller {
        clients: clients().await,
        namespace: "polychrome-apps".into(),
        pace: Pace::default(),
    }
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

/// Puts back what was changed, as a person chooses it; the instance as the tick after that sees it.
async fn put_back(app: &TestApp, r: &Reconciler, id: &str) -> Value {
    let (member, path) = (app.client("member"), format!("/api/v1/instances/{id}"));
    let choice = json!({"choice": "put_back"});
    let (status, body) = member.post(&format!("{path}/drift"), choice).await;
    assert_eq!(status, 200, "{body}");
    app.settled(id).await;
    r.tick_well().await;
    let (_, page) = member.get(&path).await;
    assert_eq!(
        (page["drift"].as_str(), page["hold"].as_str()),
        (Some("present"), None)
    );
    page
}
