//! The only door to the server: one method per thing the UI may ask. An implementation already knows who asks.

use crate::domain::{CatalogEntry, CatalogView, InstancePage, Me, Problem, Team};
use crate::pages::{InstanceQuery, ServiceDetail, SiteInfo};
use async_trait::async_trait;
use std::sync::Arc;

/// What the pages may ask.
#[async_trait]
pub trait Portal: Send + Sync {
    /// What the header says of this installation.
    async fn site(&self) -> Result<SiteInfo, Problem>;
    /// Who is asking.
    async fn me(&self) -> Result<Me, Problem>;
    /// Teams in which they may request.
    async fn teams(&self) -> Result<Vec<Team>, Problem>;
    /// What may be asked for.
    async fn catalog(&self) -> Result<CatalogView, Problem>;
    /// One entry of it.
    async fn entry(&self, service_type: String) -> Result<CatalogEntry, Problem>;
    /// A page of instances.
    async fn instances(&self, query: InstanceQuery) -> Result<InstancePage, Problem>;
    /// A page that is drawn whole, as HTML.
    async fn drawn(&self, name: String) -> Result<String, Problem>;
    /// Everything about one.
    async fn detail(&self, id: String) -> Result<ServiceDetail, Problem>;
}

/// The door, as the request's context carries it.
#[derive(Clone)]
pub struct PortalContext(pub Arc<dyn Portal>);
