//! One file a page: asks `api`, draws `ui`.

mod catalog;
#[cfg(feature = "ssr")]
pub mod change;
mod delete;
mod drawn;
#[cfg(feature = "ssr")]
pub mod drift;
mod model;
mod not_found;
mod request;
#[cfg(feature = "ssr")]
pub mod rollouts;
mod service;
mod services;
#[cfg(feature = "ssr")]
pub mod workflows;

pub use catalog::CatalogPage;
pub use delete::DeletePage;
#[cfg(feature = "ssr")]
pub use drawn::draw;
pub use drawn::{ChangePage, DriftPage, RolloutsPage, WorkflowsPage};
pub use model::{FormFlash, InstanceQuery, ServiceDetail, SiteInfo};
pub use not_found::NotFoundPage;
pub use request::RequestPage;
pub use service::ServicePage;
pub use services::ServicesPage;
