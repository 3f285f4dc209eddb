//! Tasks: units of work in the queue, as people see them.

use super::time::Timestamp;
use super::{InstanceId, TaskId};
use serde::{Deserialize, Serialize};

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TaskKind {
    /// Install or repair.
    Provision,
    /// Move to another entry revision or other parameters.
    Upgrade,
    /// Move back to an earlier revision.
    Rollback,
    /// Remove.
    Deprovision,
}

/// Every kind this version knows. Others are left for a newer worker.
pub const KINDS: [TaskKind; 4] = [
    TaskKind::Provision,
    TaskKind::Upgrade,
    TaskKind::Rollback,
    TaskKind::Deprovision,
];

impl TaskKind {
    /// The word used in SQL and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provision => "provision",
            Self::Upgrade => "upgrade",
            Self::Rollback => "rollback",
            Self::Deprovision => "deprovision",
        }
    }

    /// The kind of that word.
    pub fn parse(word: &str) -> Option<Self> {
        KINDS.into_iter().find(|k| k.as_str() == word)
    }
}

/// Where a task is, as seen from outside. The queue's inner states (`parked`, `gated`, `blocked`, `ready`) are all `queued`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// Waiting, for its time or its turn.
    Queued,
    /// A worker holds it.
    Running,
    /// Done.
    Succeeded,
    /// Given up, with its error.
    Failed,
    /// Not needed any more, or merged into another.
    Cancelled,
}

impl TaskState {
    /// The outer state of an inner or final word of the queue.
    pub fn of(word: &str) -> Self {
        match word {
            "running" => Self::Running,
            "succeeded" => Self::Succeeded,
            "failed" => Self::Failed,
            "cancelled" | "superseded" => Self::Cancelled,
            _ => Self::Queued,
        }
    }

    /// The word used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    /// Under way.
    Running,
    /// Over.
    Succeeded,
    /// Stopped by an error.
    Failed,
}

impl StepState {
    /// The word used in SQL and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

/// One step of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Step {
    /// Words a person reads, e.g. `Run Helm`.
    pub name: String,
    /// The attempt it belongs to, from 1.
    pub attempt: i32,
    /// How far it is.
    pub state: StepState,
    /// When it began.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub started_at: Timestamp,
    /// When it ended.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub finished_at: Option<Timestamp>,
}

/// A task as API and portal show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// What it does (a word; a newer worker may know more kinds than this one).
    pub kind: String,
    /// For whom.
    pub instance_id: InstanceId,
    /// Where it is.
    pub state: TaskState,
    /// Not before.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub run_after: Timestamp,
    /// Attempts begun.
    pub attempt: i32,
    /// Attempts allowed.
    pub max_attempts: i32,
    /// Why it was asked.
    pub reason: String,
    /// By whom.
    pub requested_by: String,
    /// W3C trace context of who asked.
    pub traceparent: Option<String>,
    /// What it waits for, when an outage holds it: costs no attempt.
    pub waiting_for: Option<String>,
    /// Since when.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub waiting_since: Option<Timestamp>,
    /// Oldest first, over all attempts.
    pub steps: Vec<Step>,
    /// What went wrong last.
    pub error: Option<String>,
    /// When it was asked.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    /// When its first attempt began.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub finished_at: Option<Timestamp>,
}

/// One line that a step wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct LogLine {
    /// Counts from 1 within the task; ask `?after=` it.
    pub seq: i64,
    /// When it was written.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// Which step wrote it.
    pub step: String,
    /// `stdout`, `stderr` or `svcforge`.
    pub stream: String,
    /// The line, without its newline; escape codes are made visible.
    pub text: String,
}
