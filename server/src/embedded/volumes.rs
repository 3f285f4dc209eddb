//! Volumes for the local cluster: one hostPath PersistentVolume a pending claim, removed when its claim is gone. Nothing is
//! ever mounted: there are no containers.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use std::time::Duration;

/// The default storage class.
pub const CLASS: &str = "local";
/// Between looks.
const INTERVAL: Duration = Duration::from_millis(500);

/// Provides until aborted.
pub async fn provide(client: Client) {
    loop {
        if let Err(error) = pass(&client).await {
            tracing::debug!(event = "volumes.retried", %error);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn pass(client: &Client) -> anyhow::Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    for claim in claims.list(&ListParams::default()).await? {
        let spec = claim.spec.clone().unwrap_or_default();
        let pending = claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound");
        if !pending
            || spec.storage_class_name.as_deref() != Some(CLASS)
            || claim.metadata.deletion_timestamp.is_some()
        {
            continue;
        }
        let uid = claim.uid().unwrap_or_default();
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": format!("pvc-{uid}"), "labels": {"svcforge.dev/local-volume": "true"}},
            "spec": {
                "capacity": {"storage": spec.resources.and_then(|r| r.requests).and_then(|r| r.get("storage").cloned()).unwrap_or_default()},
                "accessModes": spec.access_modes, "storageClassName": CLASS, "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": format!("/nowhere/{uid}")},
                "claimRef": {"namespace": claim.namespace(), "name": claim.name_any(), "uid": uid},
            },
        }))?;
        match volumes.create(&PostParams::default(), &volume).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => drop(other?),
        }
    }
    for volume in volumes
        .list(&ListParams::default().labels("svcforge.dev/local-volume=true"))
        .await?
    {
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        if matches!(phase, Some("Released" | "Failed")) {
            volumes
                .delete(&volume.name_any(), &DeleteParams::default())
                .await?;
        }
    }
    Ok(())
}
