//! Everything said to Kubernetes. The only room with a `kube::Client`.

mod client;
mod definition;
mod error;
mod identity;
mod kubeconfig;
mod namespace;
mod objects;
mod observer;
pub mod readiness;
pub mod release;
mod releases;
mod secret;
mod watch;

pub use client::{Clients, connect};
pub use definition::{ServiceDefinition, ServiceDefinitionSpec, ServiceDefinitionStatus, crds};
pub use identity::{bind, bind_if_reachable};
pub use kubeconfig::write_for_helm;
pub use namespace::ensure_namespace;
pub use objects::{claims_of, delete_claims, still_there};
pub use observer::observe;
pub use releases::{ClusterReleases, Listing, Releases, Seen, Watched};
pub use secret::{adopt_credentials, delete_credentials, ensure_credentials, read_credentials};
pub use watch::Stores;

/// Label: which installation an object belongs to.
pub const INSTALLATION: &str = "svcforge.dev/installation";
/// Label: which instance it belongs to.
pub const INSTANCE: &str = "svcforge.dev/instance";
/// Field manager of what svcforge applies itself.
pub const MANAGER: &str = "svcforge";
