//! How instances come into being and go: a [`Provisioner`] with three makes. Workers treat; nobody else does.

pub mod connection;
mod definition;
mod fault;
pub mod helm;
pub mod kubernetes;
pub mod scripted;

pub use fault::Fault;

use crate::{
    catalog::Entry,
    db::{instance::Work, observed::ObjectRef},
    queue::Attempt,
};
use async_trait::async_trait;
use uuid::Uuid;

/// What is to be in the cluster.
#[derive(Clone, Debug)]
pub struct Job {
    /// Whose.
    pub instance_id: Uuid,
    /// Names, place, recorded revision.
    pub work: Work,
    /// The entry revision's id.
    pub revision_id: Uuid,
    /// The entry, from that revision.
    pub entry: Entry,
    /// Its packed chart.
    pub chart: Option<Vec<u8>>,
    /// Checked parameters for that revision.
    pub parameters: serde_json::Map<String, serde_json::Value>,
}

/// Installs, removes, and opens credentials.
#[async_trait]
pub trait Provisioner: Send + Sync + 'static {
    /// Brings the instance to what the job says and waits until it serves. What running twice leaves, running once leaves.
    async fn install(&self, job: &Job, attempt: &Attempt) -> Result<Vec<ObjectRef>, Fault>;

    /// Removes it, and comes back only when nothing is left but what `on_delete` keeps.
    async fn remove(&self, job: &Job, attempt: &Attempt) -> Result<(), Fault>;

    /// The credentials of the instance, by name. For a sealed answer only.
    async fn credentials(
        &self,
        job: &Job,
    ) -> Result<std::collections::BTreeMap<String, String>, Fault>;
}
