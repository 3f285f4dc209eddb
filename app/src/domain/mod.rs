//! What things are: plain types and pure rules. No I/O, no clock, no randomness.
//!
//! The JSON of these types *is* the API (`/api/v1`) and what the pages draw, so that the two cannot
//! disagree. Times are RFC 3339 UTC, ids are UUIDs (v7).

pub mod catalog;
pub mod definition;
pub mod drift;
pub mod event;
pub mod ids;
pub mod instance;
#[cfg(feature = "ssr")]
pub mod may_act;
pub mod name;
#[cfg(feature = "ssr")]
pub mod parameters;
pub mod problem;
pub mod readiness;
pub mod release;
pub mod rollout;
#[cfg(feature = "ssr")]
pub mod standing;
pub mod task;
pub mod team;
pub mod time;
#[cfg(feature = "ssr")]
pub mod window;

pub use catalog::{CatalogEntry, CatalogView, EntryKind, FormField, FormWidget};
pub use definition::{Definition, StageView, WorkflowView};
pub use drift::{Brake, DriftItem, DriftVerdict, DriftView, Leftover, Orphan};
pub use event::Event;
pub use ids::{EntryRevisionId, InstanceId, TaskId, TeamId, UserId};
pub use instance::{Connection, ConnectionField, Instance, InstancePage, InstanceState};
#[cfg(feature = "ssr")]
pub use may_act::{Act, Facts, Ruling, may_act, obstacles};
pub use problem::{FieldError, Problem};
pub use readiness::{Part, Readiness, Verdict};
pub use release::Release;
pub use rollout::{
    Halt, Pause, Pin, Rollout, RolloutsView, Upgrade, UpgradeStatus, VersionCount, WaitingUpgrade,
};
#[cfg(feature = "ssr")]
pub use standing::{OpenUpgrade, Standing};
pub use task::{LogLine, Step, StepState, Task, TaskKind, TaskState};
pub use team::{Me, Role, Team};
#[cfg(feature = "ssr")]
pub use window::Window;
