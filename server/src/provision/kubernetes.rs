//! The provisioner for a real API server: Helm for charts, the API for definitions.

use super::{Fault, Job, Provisioner, helm::Helm};
use crate::{cluster, db::observed::ObjectRef, queue::Attempt};
use async_trait::async_trait;
use std::collections::BTreeMap;
use svcforge_app::domain::EntryKind;

/// Installs into one cluster, for one installation.
pub struct Kubernetes {
    /// The cluster.
    pub clients: cluster::Clients,
    /// Helm, supervised.
    pub helm: Helm,
    /// Labels what is ours.
    pub installation: String,
}

#[async_trait]
impl Provisioner for Kubernetes {
    async fn install(&self, job: &Job, attempt: &Attempt) -> Result<Vec<ObjectRef>, Fault> {
        match job.entry.kind {
            EntryKind::Helm => self.install_chart(job, attempt).await,
            EntryKind::ServiceDefinition => self.install_definition(job, attempt).await,
        }
    }

    async fn remove(&self, job: &Job, attempt: &Attempt) -> Result<(), Fault> {
        match job.entry.kind {
            EntryKind::Helm => self.remove_chart(job, attempt).await,
            EntryKind::ServiceDefinition => self.remove_definition(job, attempt).await,
        }
    }

    async fn credentials(&self, job: &Job) -> Result<BTreeMap<String, String>, Fault> {
        cluster::read_credentials(&self.clients, &self.installation, job).await
    }
}
