//! One file a page: asks `api`, draws `ui`.

mod catalog;
mod delete;
mod drift;
mod model;
mod not_found;
mod request;
mod rollouts;
mod service;
mod services;

pub use catalog::CatalogPage;
pub use delete::DeletePage;
pub use drift::DriftPage;
pub use model::{FormFlash, InstanceQuery, ServiceDetail, SiteInfo};
pub use not_found::NotFoundPage;
pub use request::RequestPage;
pub use rollouts::RolloutsPage;
pub use service::ServicePage;
pub use services::ServicesPage;
