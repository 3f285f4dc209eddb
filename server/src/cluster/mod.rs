//! Everything said to Kubernetes. The only room with a `kube::Client`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

mod client;
mod condition;
mod definition;
mod error;
mod identity;
mod kubeconfig;
mod namespace;
mod objects;
mod observed_definitions;
mod observer;
pub mod readiness;
mod records;
pub mod release;
mod releases;
mod secret;
pub mod trouble;
mod watch;
mod workflow;

pub use client::{Clients, connect};
pub use condition::{Condition, same_conditions, set_conditions};
pub use definition::{
    NAME_RULE, ServiceDefinition, ServiceDefinitionSpec, ServiceDefinitionStatus,
};
pub use identity::{bind, bind_if_reachable};
pub use kubeconfig::write_for_helm;
pub use namespace::ensure_namespace;
pub use objects::{claims_of, delete_claims, delete_released, find_uid, still_there};
pub use observed_definitions::observe_definitions;
pub use observer::observe;
pub use releases::{ClusterReleases, Listing, Releases, Seen, Watched};
pub use secret::{
    adopt_credentials, delete_credentials, ensure_credentials, name as credentials_name,
    read_credentials,
};
pub use watch::Stores;
pub use workflow::{Stage, StageStatus, Workflow, WorkflowSpec, WorkflowStatus};

/// Every CRD, as generated into `deploy/crds`.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![definition::crd(), workflow::crd()]
}

/// Label: which installation an object belongs to.
pub const INSTALLATION: &str = "svcforge.dev/installation";
/// Label: which instance it belongs to.
pub const INSTANCE: &str = "svcforge.dev/instance";
/// Label that names the Workflow a ServiceDefinition was made from.
pub const OF_WORKFLOW: &str = "polychrome.dev/workflow";
/// Field manager of what the controller stamps (contract §1.3).
pub const CONTROLLER: &str = "polychrome.dev/controller";
/// Field manager of what svcforge applies itself.
pub const MANAGER: &str = "svcforge";
