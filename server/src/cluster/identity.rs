//! N2: a database is bound to one cluster, by the UID of its `kube-system` namespace. On another it must only read.

use super::Clients;
use crate::db;
use anyhow::Context;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};
use sqlx::PgPool;

/// As [`bind`], for those who only read: while the cluster is away its identity is taken for the recorded one.
///
/// # Errors
/// When the cluster is not the one the database is bound to.
pub async fn bind_if_reachable(clients: &Clients, pool: &PgPool) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(clients.request.clone());
    match api.get("kube-system").await {
        Ok(_) => bind(clients, pool).await,
        Err(error) => {
            tracing::warn!(event = "cluster.away", %error);
            Ok(())
        }
    }
}

/// Binds the database to this cluster, or refuses: it is bound to another.
///
/// # Errors
/// When the cluster cannot be reached, or is not the one the database is bound to.
pub async fn bind(clients: &Clients, pool: &PgPool) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(clients.request.clone());
    let system = api
        .get("kube-system")
        .await
        .context("the cluster cannot be reached (reading namespace kube-system)")?;
    let here = system.uid().unwrap_or_default();
    anyhow::ensure!(
        !here.is_empty(),
        "the cluster does not tell the UID of kube-system"
    );
    db::installation::load(pool).await?;
    let bound = db::installation::bind_cluster(&mut *pool.acquire().await?, &here).await?;
    anyhow::ensure!(
        bound == here,
        "this database belongs to another cluster (kube-system {bound}, here {here}): nothing is written. Name the right cluster, or use another database"
    );
    Ok(())
}
