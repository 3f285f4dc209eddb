//! A local control plane of the real etcd, kube-apiserver, controller-manager and scheduler; kwok stands in for nodes.
//! Deployments, garbage collection, quotas, admission and Helm are the real thing; only containers are not run.

use super::{
    pki::{Pki, secret},
    ports::free_port,
    process::{Guarded, Launcher, Manner},
    volumes,
};
use crate::{cluster, config, ids};
use anyhow::Context;
use k8s_openapi::api::{
    core::v1::{Namespace, Node},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{
    fmt::Debug,
    path::{Path, PathBuf},
    time::Duration,
};

/// Names of the binaries that must be in the folder; `kwok-stages` is a folder of stage files.
pub fn required_binaries() -> [&'static str; 8] {
    [
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kwok",
        "kubectl",
        "helm",
        "kwok-stages",
    ]
}

/// Images that fail on purpose.
const CHAOS: &str = include_str!("../../../deploy/local/kwok/chaos.yaml");

/// A running control plane.
pub struct ControlPlane {
    /// Kubeconfig of its admin.
    pub kubeconfig: PathBuf,
    /// Its binaries, Helm and kubectl among them.
    pub bin: PathBuf,
    // In the order of their start; stopped in reverse.
    processes: Vec<Guarded>,
    volumes: tokio::task::JoinHandle<()>,
}

/// The node that kwok plays.
const NODE: &str = "local-1";
/// Longest start of one component.
const START: Duration = Duration::from_secs(60);

impl ControlPlane {
    /// Starts it with its data in `dir`/cluster.
    ///
    /// # Errors
    /// When a binary is missing, or a component does not start: with the end of its log.
    pub async fn start(
        launcher: &Launcher,
        bin: &Path,
        dir: &Path,
        apps_namespace: &str,
    ) -> anyhow::Result<Self> {
        for name in required_binaries() {
            anyhow::ensure!(
                bin.join(name).exists(),
                "the local control plane is not built: {} is missing from {} (`./dev up` builds it)",
                name,
                bin.display()
            );
        }
        let home = dir.join("cluster");
        let pki = Pki::ensure(&home.join("pki"))?;
        let tokens = home.join("tokens.csv");
        if !tokens.exists() {
            secret(
                &tokens,
                &format!(
                    "{},svcforge-admin,svcforge-admin,\"system:masters\"\n",
                    ids::new_secret()
                ),
            )?;
        }
        let [etcd_port, etcd_peer, api_port] = [free_port()?, free_port()?, free_port()?];
        let exe = |name: &str| bin.join(name).display().to_string();
        let path = |p: &Path| p.display().to_string();

        let etcd = [
            exe("etcd"),
            "--name=svcforge".into(),
            format!("--data-dir={}", path(&home.join("etcd"))),
            format!("--listen-client-urls=https://127.0.0.1:{etcd_port}"),
            format!("--advertise-client-urls=https://127.0.0.1:{etcd_port}"),
            format!("--listen-peer-urls=http://127.0.0.1:{etcd_peer}"),
            format!("--initial-advertise-peer-urls=http://127.0.0.1:{etcd_peer}"),
            format!("--initial-cluster=svcforge=http://127.0.0.1:{etcd_peer}"),
            // Every Secret is in it: only the API server may ask.
            "--client-cert-auth".into(),
            format!("--trusted-ca-file={}", path(&pki.ca)),
            format!("--cert-file={}", path(&pki.cert)),
            format!("--key-file={}", path(&pki.key)),
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ];
        let mut processes = vec![launcher.start("etcd", Manner::default(), &etcd)?];

        let apiserver = [
            exe("kube-apiserver"),
            format!("--etcd-servers=https://127.0.0.1:{etcd_port}"),
            format!("--etcd-cafile={}", path(&pki.ca)),
            format!("--etcd-certfile={}", path(&pki.cert)),
            format!("--etcd-keyfile={}", path(&pki.key)),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={api_port}"),
            "--endpoint-reconciler-type=none".into(),
            format!("--tls-cert-file={}", path(&pki.cert)),
            format!("--tls-private-key-file={}", path(&pki.key)),
            format!("--token-auth-file={}", path(&tokens)),
            "--authorization-mode=RBAC".into(),
            // Its counterpart that lifts the taint again is the node lifecycle controller, which does not run.
            "--disable-admission-plugins=TaintNodesByCondition".into(),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-key-file={}", path(&pki.accounts_public)),
            format!("--service-account-signing-key-file={}", path(&pki.accounts)),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            "--profiling=false".into(),
        ];
        let mut api = launcher.start("kube-apiserver", Manner::default(), &apiserver)?;
        let kubeconfig = home.join("kubeconfig.yaml");
        write_kubeconfig(&kubeconfig, api_port, &pki, &tokens)?;
        let settings = config::Cluster {
            kubeconfig: Some(kubeconfig.clone()),
            ..Default::default()
        };
        let clients = cluster::connect(&settings)
            .await?
            .context("a kubeconfig was named")?;
        api.until(START, || ready(clients.request.clone())).await?;
        processes.push(api);

        let manager = [
            exe("kube-controller-manager"),
            format!("--kubeconfig={}", path(&kubeconfig)),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            // A kwok that restarts loses its node leases for a while; nothing would put that right.
            "--controllers=*,-node-lifecycle-controller".into(),
            format!("--root-ca-file={}", path(&pki.ca)),
            format!("--service-account-private-key-file={}", path(&pki.accounts)),
            "--kube-api-qps=1000".into(),
            "--kube-api-burst=2000".into(),
            "--concurrent-deployment-syncs=20".into(),
            "--concurrent-replicaset-syncs=20".into(),
        ];
        processes.push(launcher.start("kube-controller-manager", Manner::default(), &manager)?);
        let scheduler = [
            exe("kube-scheduler"),
            format!("--kubeconfig={}", path(&kubeconfig)),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            "--kube-api-qps=1000".into(),
            "--kube-api-burst=2000".into(),
        ];
        processes.push(launcher.start("kube-scheduler", Manner::default(), &scheduler)?);
        let mut kwok = vec![
            exe("kwok"),
            format!("--kubeconfig={}", path(&kubeconfig)),
            "--manage-all-nodes=true".into(),
        ];
        let mut stages: Vec<PathBuf> = std::fs::read_dir(bin.join("kwok-stages"))?
            .flatten()
            .map(|f| f.path())
            .collect();
        stages.sort();
        let chaos = dir.join("chaos.yaml");
        std::fs::write(&chaos, CHAOS)?;
        stages.push(chaos);
        kwok.extend(
            stages
                .iter()
                .map(|stage| format!("--config={}", path(stage))),
        );
        let mut kwok = launcher.start("kwok", Manner::default(), &kwok)?;
        furnish(&clients.request, apps_namespace).await?;
        kwok.until(START, || node_ready(clients.request.clone()))
            .await?;
        processes.push(kwok);
        let volumes = tokio::spawn(volumes::provide(clients.request.clone()));
        Ok(Self {
            kubeconfig,
            bin: bin.into(),
            processes,
            volumes,
        })
    }

    /// Stops it, the API server's clients first.
    pub fn stop(&mut self) {
        self.volumes.abort();
        for process in self.processes.iter_mut().rev() {
            process.stop();
        }
    }
}

async fn ready(client: Client) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(vec![]) else {
        return false;
    };
    client
        .request_text(request)
        .await
        .is_ok_and(|text| text == "ok")
}

async fn node_ready(client: Client) -> bool {
    let nodes: Api<Node> = Api::all(client);
    let Ok(node) = nodes.get(NODE).await else {
        return false;
    };
    let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
    conditions
        .iter()
        .any(|c| c.type_ == "Ready" && c.status == "True")
}

fn write_kubeconfig(file: &Path, port: u16, pki: &Pki, tokens: &Path) -> anyhow::Result<()> {
    let ca = data_encoding::BASE64.encode(&std::fs::read(&pki.ca)?);
    let tokens = std::fs::read_to_string(tokens)?;
    let token = tokens.split(',').next().unwrap_or_default();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "svcforge-local",
        "clusters": [{"name": "svcforge-local", "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority-data": ca}}],
        "users": [{"name": "svcforge-admin", "user": {"token": token}}],
        "contexts": [{"name": "svcforge-local", "context": {"cluster": "svcforge-local", "user": "svcforge-admin"}}],
    });
    // JSON is YAML.
    Ok(secret(file, &serde_json::to_string_pretty(&config)?)?)
}

/// What a cluster has that an empty API server has not: a node, a default storage class, the apps namespace, the CRDs.
async fn furnish(client: &Client, apps_namespace: &str) -> anyhow::Result<()> {
    let room = json!({"cpu": "64", "memory": "256Gi", "pods": "2000", "ephemeral-storage": "1Ti"});
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux", "type": "kwok"}, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "status": {"allocatable": room, "capacity": room},
    });
    apply::<Node>(&Api::all(client.clone()), NODE, &node).await?;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": volumes::CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "Immediate",
    });
    apply::<StorageClass>(&Api::all(client.clone()), volumes::CLASS, &class).await?;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": apps_namespace}});
    apply::<Namespace>(&Api::all(client.clone()), apps_namespace, &namespace).await?;
    for mut crd in cluster::crds() {
        crd.metadata.managed_fields = None;
        let name = crd.metadata.name.clone().unwrap_or_default();
        let mut value = serde_json::to_value(&crd)?;
        value["apiVersion"] = json!("apiextensions.k8s.io/v1");
        value["kind"] = json!("CustomResourceDefinition");
        apply::<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>(&Api::all(client.clone()), &name, &value).await?;
    }
    Ok(())
}

async fn apply<K: Clone + Debug + DeserializeOwned + Serialize>(
    api: &Api<K>,
    name: &str,
    object: &serde_json::Value,
) -> anyhow::Result<()> {
    let params = PatchParams::apply("svcforge-local").force();
    api.patch(name, &params, &Patch::Apply(object))
        .await
        .with_context(|| format!("cannot furnish the local cluster with {name}"))?;
    Ok(())
}
