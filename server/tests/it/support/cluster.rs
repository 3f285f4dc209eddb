//! The real API server and the real Helm of the testbed.

use super::TestApp;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use svcforge::{
    cluster::{self, Clients},
    config, db,
    provision::{
        Provisioner,
        helm::{Helm, Workdir},
        kubernetes::Kubernetes,
    },
};

pub fn kubeconfig() -> PathBuf {
    std::env::var("SVCFORGE_TEST_KUBECONFIG")
        .expect("SVCFORGE_TEST_KUBECONFIG is not set: run the tests by ./dev test")
        .into()
}

pub fn bin(name: &str) -> PathBuf {
    PathBuf::from(
        std::env::var("SVCFORGE_TEST_BIN")
            .expect("SVCFORGE_TEST_BIN is not set: run the tests by ./dev test"),
    )
    .join(name)
}

/// Helm 4, or the one that `./dev test --long` names.
pub fn helm_bin() -> PathBuf {
    std::env::var("SVCFORGE_TEST_HELM").map_or_else(|_| bin("helm"), PathBuf::from)
}

pub fn svcforge_bin() -> PathBuf {
    env!("CARGO_BIN_EXE_svcforge").into()
}

pub async fn clients() -> Clients {
    let settings = config::Cluster {
        kubeconfig: Some(kubeconfig()),
        ..Default::default()
    };
    cluster::connect(&settings).await.unwrap().unwrap()
}

/// A provisioner with that Helm timeout.
pub async fn provisioner(app: &TestApp, timeout: Duration) -> Arc<dyn Provisioner> {
    let home = Workdir::new(&std::env::temp_dir()).unwrap();
    let private = home.path().join("kubeconfig.json");
    let named = config::Cluster {
        kubeconfig: Some(kubeconfig()),
        ..Default::default()
    };
    let server = cluster::write_for_helm(&named, &private).unwrap();
    let installation = db::installation::load(&app.db.pool).await.unwrap();
    Arc::new(Kubernetes {
        clients: clients().await,
        helm: Helm {
            bin: helm_bin(),
            guard: svcforge_bin(),
            kubeconfig: private,
            server,
            home: Arc::new(home),
            tmp: std::env::temp_dir(),
            timeout,
            timing: app.timing,
            environment: vec![],
        },
        installation: installation.id.to_string(),
    })
}

/// Runs kubectl and returns what it printed; panics when it fails.
pub fn kubectl(args: &[&str]) -> String {
    let (ok, text) = try_kubectl(args);
    assert!(ok, "kubectl {args:?}: {text}");
    text
}

/// Runs kubectl; whether it worked, and what it printed.
pub fn try_kubectl(args: &[&str]) -> (bool, String) {
    kubectl_at(&kubeconfig(), args)
}

/// The same against another cluster than the testbed's.
pub fn kubectl_at(kubeconfig: &Path, args: &[&str]) -> (bool, String) {
    let out = std::process::Command::new(bin("kubectl"))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(args)
        .output()
        .unwrap();
    let text = if out.status.success() {
        out.stdout
    } else {
        out.stderr
    };
    (
        out.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Ids of Helm processes that work on that release; not of their guards.
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
            (program.ends_with("/helm") || program.ends_with("/helm3"))
                && words.any(|w| w == release)
        })
        .collect()
}
