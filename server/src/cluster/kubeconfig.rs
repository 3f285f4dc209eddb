//! A kubeconfig for Helm with nothing in it but the cluster that the database is bound to: a context that somebody switches, or a
//! relative path, must not send Helm elsewhere than the clients.

use crate::config;
use anyhow::Context;
use kube::config::Kubeconfig;
use serde_json::json;
use std::path::Path;

/// Where a pod finds its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Writes it, readable by us alone. Returns the API's address in it.
///
/// # Errors
/// When the named kubeconfig cannot be read or has no such context, or that context's cluster no address.
pub fn write_for_helm(settings: &config::Cluster, file: &Path) -> anyhow::Result<String> {
    let (server, text) = match &settings.kubeconfig {
        Some(path) => {
            let mut whole =
                Kubeconfig::read_from(path).with_context(|| path.display().to_string())?;
            let name = settings
                .context
                .clone()
                .or(whole.current_context.clone())
                .context("the kubeconfig has no current context; name one with SVCFORGE_CONTEXT")?;
            whole.contexts.retain(|c| c.name == name);
            let context = whole.contexts.first().and_then(|c| c.context.clone());
            let context =
                context.with_context(|| format!("the kubeconfig has no context {name:?}"))?;
            whole.clusters.retain(|c| c.name == context.cluster);
            whole
                .auth_infos
                .retain(|a| Some(&a.name) == context.user.as_ref());
            let cluster = whole.clusters.first().and_then(|c| c.cluster.clone());
            let server = cluster.and_then(|c| c.server).with_context(|| {
                format!("the cluster of the kubeconfig's context {name:?} has no server")
            })?;
            whole.current_context = Some(name);
            (server, serde_json::to_string(&whole)?)
        }
        None => {
            let [host, port] = config::service_host()?;
            let server = format!("https://{host}:{port}");
            let text = serde_json::to_string(&json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "pod",
                "clusters": [{"name": "pod", "cluster": {"server": &server, "certificate-authority": format!("{ACCOUNT}/ca.crt")}}],
                "users": [{"name": "pod", "user": {"tokenFile": format!("{ACCOUNT}/token")}}],
                "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
            }))?;
            (server, text)
        }
    };
    write_private(file, &text)?;
    Ok(server)
}

fn write_private(file: &Path, text: &str) -> std::io::Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?
        .write_all(text.as_bytes())
}
