//! Helm's record of an installation.

use serde::{Deserialize, Serialize};

/// Where an instance is in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Release {
    /// Release name; for a definition, the object's name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// The highest revision we wrote; none before the first.
    pub revision: Option<i32>,
}
