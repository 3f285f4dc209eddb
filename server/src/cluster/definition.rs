//! `ServiceDefinition` (contract §1.1): the type, from which the CRD is generated.

use super::Condition;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, ValidationRule,
};
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
    derive = "PartialEq",
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
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^\S(.*\S)?$"))]
    pub image: String,
    /// Container port.
    #[serde(default = "default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Desired replicas.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub replicas: i32,
    /// Environment.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 1000, "x-kubernetes-validations" = [
        {"rule": "self.all(k, size(k) > 0 && size(k) <= 512)", "message": "a name of an environment variable has 1 to 512 characters"},
        {"rule": "self.all(k, k.matches('^[ -<>-~]*$'))", "message": "a name of an environment variable is printable ASCII without '='"}]))]
    pub env: BTreeMap<String, String>,
}

pub(super) fn default_port() -> i32 {
    8080
}

pub(super) fn default_replicas() -> i32 {
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
    /// `Ready`, `Progressing` and `Degraded`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl ServiceDefinition {
    /// Whether its rollout is complete, and its status speaks of the spec as it is now.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|s| {
            s.ready
                && s.observed_generation
                    .is_some_and(|seen| seen >= self.metadata.generation.unwrap_or(0))
        })
    }
}

/// What a name may be: a Service gets it, and it is a label's value; the strictest of the three rules.
pub const NAME_RULE: &str = "must be at most 63 of a-z, 0-9 and '-', begin with a letter and end with a letter or digit: a Service gets this name";

pub(super) fn crd() -> CustomResourceDefinition {
    let mut crd = ServiceDefinition::crd();
    let rule = ValidationRule {
        rule: "size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')".into(),
        message: Some(format!("metadata.name {NAME_RULE}")),
        ..Default::default()
    };
    for version in &mut crd.spec.versions {
        if let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|s| s.open_api_v3_schema.as_mut())
        {
            schema.x_kubernetes_validations = Some(vec![rule.clone()]);
        }
    }
    crd
}
