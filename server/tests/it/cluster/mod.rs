//! The real thing: Helm and a Kubernetes API. What the main job promises, and what it must never do.

mod installs;
mod others;
mod stuck;

use crate::support::{
    TestApp,
    app::shipped,
    cluster::{clients, helms_of, kubeconfig, kubectl, provisioner, try_kubectl},
    process::serve,
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

/// A hook that holds Helm for a while: something to kill.
const SLOW: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Release.Name }}\"}\n---\napiVersion: batch/v1\nkind: Job\nmetadata:\n  name: \"{{ .Release.Name }}-hook\"\n  annotations: {helm.sh/hook: \"pre-install,pre-upgrade\", helm.sh/hook-delete-policy: before-hook-creation}\nspec:\n  suspend: true\n  template:\n    spec:\n      restartPolicy: Never\n      securityContext: {runAsNonRoot: true, runAsUser: 1, seccompProfile: {type: RuntimeDefault}}\n      containers: [{name: a, image: a, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]\n";
