//! `Workflow` (contract §1.6): stages that become ServiceDefinitions in the order of what they depend on.

use super::{
    Condition,
    definition::{default_port, default_replicas},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Stages and what each depends on.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "polychrome.dev",
    version = "v1alpha1",
    kind = "Workflow",
    derive = "PartialEq",
    namespaced,
    status = "WorkflowStatus",
    shortname = "wf",
    printcolumn = r#"{"name":"READY","type":"boolean","jsonPath":".status.ready"}"#,
    printcolumn = r#"{"name":"STATUS","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"STAGES","type":"string","jsonPath":".status.progress"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowSpec {
    /// Each becomes the ServiceDefinition `<workflow>-<stage>`.
    #[schemars(length(max = 100))]
    pub stages: Vec<Stage>,
}

/// One stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// Its name within the workflow.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Names of stages that must be ready before it is created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
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
    #[schemars(extend("maxProperties" = 100, "x-kubernetes-validations" = [
        {"rule": "self.all(k, size(k) > 0 && size(k) <= 512)", "message": "a name of an environment variable has 1 to 512 characters"},
        {"rule": "self.all(k, k.matches('^[ -<>-~]*$'))", "message": "a name of an environment variable is printable ASCII without '='"}]))]
    pub env: BTreeMap<String, String>,
    /// What it was scaffolded from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowStatus {
    /// Every stage is ready.
    #[serde(default)]
    pub ready: bool,
    /// `Ready`, `Pending`, `Failed` or `Degraded`.
    #[serde(default)]
    pub phase: String,
    /// E.g. `3/5`: stages that are ready.
    #[serde(default)]
    pub progress: String,
    /// Why it is not ready, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The generation that this speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// In the order of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub stages: Vec<StageStatus>,
    /// `Ready`, `Progressing` and `Degraded`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How one stage is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    /// Its name within the workflow.
    pub name: String,
    /// Whether it is ready by the rule of ServiceDefinitions, for its current generation.
    pub ready: bool,
    /// `Waiting` (not created yet), or its ServiceDefinition's phase.
    pub phase: String,
    /// Why it is not ready, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

pub(super) fn crd() -> CustomResourceDefinition {
    Workflow::crd()
}
