//! Two clients that are never crossed: requests have a read timeout, watches have none.

use crate::config;
use anyhow::Context;
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::time::Duration;
use tower::timeout::TimeoutLayer;

/// Within that a request is answered (a body may follow for as long as it likes), with the library's own retries: or a pass would
/// sleep in them for minutes without a word, and a watch that a proxy swallowed would be waited for without end.
const ANSWER: Duration = Duration::from_secs(30);

/// Clients of one cluster.
#[derive(Clone)]
pub struct Clients {
    /// For get, list, patch: a hung call ends.
    pub request: Client,
    /// For watches only: a quiet one is not cut, but one that does not begin is.
    pub watch: Client,
}

/// Connects to the cluster that is named; to none when none is.
///
/// # Errors
/// When the kubeconfig cannot be used.
pub async fn connect(settings: &config::Cluster) -> anyhow::Result<Option<Clients>> {
    let config = if let Some(path) = &settings.kubeconfig {
        let file = Kubeconfig::read_from(path)
            .with_context(|| format!("SVCFORGE_KUBECONFIG {}", path.display()))?;
        let options = KubeConfigOptions {
            context: settings.context.clone(),
            ..Default::default()
        };
        Config::from_custom_kubeconfig(file, &options)
            .await
            .with_context(|| format!("kubeconfig {}", path.display()))?
    } else if settings.in_cluster {
        Config::incluster()
            .context("SVCFORGE_IN_CLUSTER is set, but this is no pod with a service account")?
    } else {
        return Ok(None);
    };
    Ok(Some(clients(config)?))
}

fn clients(mut config: Config) -> anyhow::Result<Clients> {
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(20));
    config.write_timeout = Some(Duration::from_secs(20));
    let request = client(config.clone())?;
    config.read_timeout = None;
    Ok(Clients {
        request,
        watch: client(config)?,
    })
}

fn client(config: Config) -> anyhow::Result<Client> {
    let bounded = ClientBuilder::try_from(config)?.with_layer(&TimeoutLayer::new(ANSWER));
    Ok(bounded.build())
}
