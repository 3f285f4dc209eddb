//! ServiceDefinitions and Workflows, as the controller sees them.

use super::{InstanceId, time::Timestamp};
use serde::{Deserialize, Serialize};

/// A ServiceDefinition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Definition {
    /// Where it is.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who asked for it, as it says itself.
    pub owner: Option<String>,
    /// Container image.
    pub image: String,
    /// Container port.
    pub port: i32,
    /// Desired replicas.
    pub replicas: i32,
    /// Available replicas.
    pub available: i32,
    /// Whether its current spec serves.
    pub ready: bool,
    /// `Ready`, `Pending` or `Failed`; empty before the controller has seen it.
    pub phase: String,
    /// Why it is not ready.
    pub message: Option<String>,
    /// The Workflow it is a stage of.
    pub workflow: Option<String>,
    /// The service it belongs to; none for one that svcforge did not make, and leaves alone.
    pub instance: Option<InstanceId>,
    /// Since when it is there.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
}

/// A Workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct WorkflowView {
    /// Where it is.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether every stage is ready.
    pub ready: bool,
    /// `Ready`, `Pending`, `Failed` or `Degraded`; empty before the controller has seen it.
    pub phase: String,
    /// E.g. `3/5`.
    pub progress: String,
    /// Why it is not ready.
    pub message: Option<String>,
    /// In the order of the spec.
    pub stages: Vec<StageView>,
    /// Since when it is there.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
}

/// A stage of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct StageView {
    /// Its name.
    pub name: String,
    /// What it waits for before it is created.
    pub depends_on: Vec<String>,
    /// Whether it is ready.
    pub ready: bool,
    /// `Waiting`, or its ServiceDefinition's phase.
    pub phase: String,
    /// Why it is not ready.
    pub message: Option<String>,
}

/// Columns of a graph: each stage as far right as what it depends on wants it. Stages of a circle stand in the first.
pub fn columns(stages: &[StageView]) -> Vec<Vec<usize>> {
    let at = |name: &String| stages.iter().position(|s| s.name == *name);
    let mut depth = vec![0usize; stages.len()];
    // As often as there are stages: longer than any path without a circle.
    for _ in 0..stages.len() {
        for (i, stage) in stages.iter().enumerate() {
            let before = stage.depends_on.iter().filter_map(at).map(|d| depth[d] + 1);
            depth[i] = before
                .max()
                .unwrap_or(0)
                .min(stages.len().saturating_sub(1));
        }
    }
    let mut columns = vec![vec![]; depth.iter().max().map_or(0, |d| d + 1)];
    for (i, d) in depth.iter().enumerate() {
        columns[*d].push(i);
    }
    columns.retain(|c| !c.is_empty());
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &str, depends_on: &[&str]) -> StageView {
        StageView {
            name: name.into(),
            depends_on: depends_on.iter().map(|d| (*d).to_owned()).collect(),
            ready: false,
            phase: String::new(),
            message: None,
        }
    }

    #[test]
    fn a_diamond_has_four_columns() {
        let stages = [
            stage("d", &["b", "c"]),
            stage("a", &[]),
            stage("b", &["a"]),
            stage("c", &["a"]),
            stage("e", &["d"]),
        ];
        assert_eq!(columns(&stages), [vec![1], vec![2, 3], vec![0], vec![4]]);
        assert!(columns(&[]).is_empty());
        let circle = [stage("a", &["b"]), stage("b", &["a"])];
        assert_eq!(columns(&circle).concat().len(), 2, "drawn all the same");
    }
}
