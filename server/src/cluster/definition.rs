//! `ServiceDefinition` (contract §1.1): the type, from which the CRD is generated, and its apply and removal.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an author may choose; everything operational is stamped by the controller.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "polychrome.dev",
    version = "v1alpha1",
    kind = "ServiceDefinition",
    namespaced,
    status = "ServiceDefinitionStatus",
    shortname = "svcdef",
    printcolumn = r#"{"name":"READY","type":"boolean","jsonPath":".status.ready"}"#,
    printcolumn = r#"{"name":"STATUS","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"REPLICAS","type":"integer","jsonPath":".spec.replicas"}"#,
    printcolumn = r#"{"name":"IMAGE","type":"string","jsonPath":".spec.image"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ServiceDefinitionSpec {
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Who asked, e.g. `user:slack/U1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What it was scaffolded from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Container image.
    #[schemars(length(min = 1))]
    pub image: String,
    /// Container port.
    #[serde(default = "default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Desired replicas.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// Environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

fn default_port() -> i32 {
    8080
}

fn default_replicas() -> i32 {
    1
}

/// What the controller says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceDefinitionStatus {
    /// The rollout of the current spec is complete.
    #[serde(default)]
    pub ready: bool,
    /// From the Deployment, reported even when not ready.
    #[serde(default)]
    pub available_replicas: i32,
    /// `Ready`, `Pending` or `Failed`.
    #[serde(default)]
    pub phase: String,
    /// Why it is not ready, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The generation that this speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Every CRD, as generated into `deploy/crds`.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![ServiceDefinition::crd()]
}
