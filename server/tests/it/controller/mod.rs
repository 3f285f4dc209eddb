//! The ServiceDefinition and Workflow controllers against the real API server (contract §1), each test in a namespace of its own.

mod definitions;
mod dormant;
mod golden;
mod stale;
mod workflows;

use crate::support::{
    cluster::{bin, clients, kubeconfig, kubectl_at, svcforge_bin},
    proxy::{Http, HttpProxy, until},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::Ordering,
    time::Duration,
};
use svcforge::{
    cluster::{self, Clients},
    config,
    controller::{Controller, Pace},
    embedded::{ControlPlane, Launcher},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_secs(30);

fn pace() -> Pace {
    Pace {
        pending: Duration::from_secs(3),
        dormant: Duration::from_millis(300),
        ..Pace::default()
    }
}

/// A namespace, and a controller that looks after it; both end with the test.
struct Apps {
    namespace: String,
    kubeconfig: PathBuf,
    stop: CancellationToken,
    running: Option<JoinHandle<()>>,
}

impl Drop for Apps {
    fn drop(&mut self) {
        self.stop.cancel();
        self.kubectl_try(&["delete", "namespace", &self.namespace, "--wait=false"]);
    }
}

impl Apps {
    /// The namespace alone.
    fn bare(kubeconfig: &Path) -> Self {
        svcforge::tls::install();
        let id = svcforge::ids::new_id().simple().to_string();
        let apps = Self {
            namespace: format!("ctl-{}", &id[20..]),
            kubeconfig: kubeconfig.into(),
            stop: CancellationToken::new(),
            running: None,
        };
        apps.kubectl(&["create", "namespace", &apps.namespace]);
        apps
    }

    async fn new() -> Self {
        let mut apps = Self::bare(&kubeconfig());
        apps.control(clients().await, pace());
        apps
    }

    fn control(&mut self, clients: Clients, pace: Pace) {
        let one = Controller {
            clients,
            namespace: self.namespace.clone(),
            pace,
        };
        self.running = Some(tokio::spawn(one.run(self.stop.clone())));
    }

    fn kubectl_try(&self, args: &[&str]) -> (bool, String) {
        kubectl_at(&self.kubeconfig, args)
    }

    fn kubectl(&self, args: &[&str]) -> String {
        let (ok, text) = self.kubectl_try(args);
        assert!(ok, "kubectl {args:?}: {text}");
        text
    }

    /// kubectl in the namespace.
    fn k(&self, args: &[&str]) -> String {
        self.kubectl(&[&["-n", self.namespace.as_str()], args].concat())
    }

    fn try_k(&self, args: &[&str]) -> (bool, String) {
        self.kubectl_try(&[&["-n", self.namespace.as_str()], args].concat())
    }

    /// Applies an object as a person with kubectl does; what the API server said.
    fn apply(&self, object: &Value) -> (bool, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), object.to_string()).unwrap();
        self.try_k(&["apply", "-f", file.path().to_str().unwrap()])
    }

    fn define(&self, name: &str, spec: Value) {
        let (ok, said) = self.apply(&definition(name, spec));
        assert!(ok, "{said}");
    }

    fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let (ok, text) = self.try_k(&["get", kind, name, "-o", "json", "--show-managed-fields"]);
        ok.then(|| serde_json::from_str(&text).unwrap())
    }

    fn status(&self, name: &str) -> Value {
        self.get("svcdef", name)
            .map_or(Value::Null, |o| o["status"].clone())
    }

    /// Waits until the definition's status is as it should be; the status.
    async fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut seen = Value::Null;
        let began = tokio::time::Instant::now();
        while began.elapsed() < SOON {
            seen = self.status(name);
            if holds(&seen) {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        panic!("{name} is not {what}: {seen:#}");
    }

    async fn ready(&self, name: &str) -> Value {
        self.until(name, "ready", |s| s["ready"] == true).await
    }
}

async fn proxied(proxy: &HttpProxy) -> Clients {
    let settings = config::Cluster {
        kubeconfig: Some(proxy.kubeconfig.clone()),
        ..Default::default()
    };
    cluster::connect(&settings).await.unwrap().unwrap()
}

fn definition(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "polychrome.dev/v1alpha1", "kind": "ServiceDefinition", "metadata": {"name": name}, "spec": spec})
}
