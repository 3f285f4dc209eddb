//! The timeline of an instance: for people.

use super::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Something that happened to an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Event {
    /// Counts over all instances.
    pub id: i64,
    /// When.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// A stable word, e.g. `state.ready`.
    pub kind: String,
    /// Who did it: a user's name or a part of svcforge.
    pub actor: String,
    /// One sentence.
    pub message: String,
    /// The task it belongs to.
    pub task_id: Option<uuid::Uuid>,
}
