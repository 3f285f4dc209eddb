//! Day-2 rollouts as API and portal show them.

use super::{InstanceId, time::Timestamp};
use serde::{Deserialize, Serialize};

/// How an instance stands towards the catalog's version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum UpgradeStatus {
    /// It runs the catalog's version, or there is nothing to move it to.
    #[default]
    Current,
    /// Under way.
    Running,
    /// It will come by itself.
    Waiting,
    /// It will not come until a person does something.
    Held,
}

/// Why not yet, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Upgrade {
    /// In a word.
    pub status: UpgradeStatus,
    /// In a sentence; none when there is nothing to say.
    pub why: Option<String>,
    /// When it may start at the soonest, where that is known.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub next_at: Option<Timestamp>,
}

/// A person keeps an instance at its version until then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Pin {
    /// It ends by itself.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub until: Timestamp,
    /// Why.
    pub reason: String,
    /// By whom.
    #[serde(default)]
    pub by: String,
}

/// Something that a person stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Halt {
    /// Why.
    pub reason: String,
    /// By whom.
    pub by: String,
    /// Since when.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub since: Timestamp,
}

/// A pause: svcforge does nothing there by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Pause {
    /// `instance`, `team`, `type` or `all`.
    pub scope: String,
    /// Which one: an instance's id, a team's slug, a type; empty for `all`.
    pub of: String,
    /// Why.
    pub reason: String,
    /// By whom.
    pub by: String,
    /// Since when.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub since: Timestamp,
    /// Until when; until somebody ends it when none.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub until: Option<Timestamp>,
}

/// How many ready instances run a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct VersionCount {
    /// The version.
    pub version: String,
    /// How many.
    pub count: i64,
}

/// An instance that does not run the target yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct WaitingUpgrade {
    /// Which one.
    pub instance: InstanceId,
    /// Its name.
    pub name: String,
    /// Its team.
    pub team: String,
    /// Why not yet.
    pub why: String,
    /// When at the soonest, where that is known.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub next_at: Option<Timestamp>,
}

/// The rollout of one service type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Rollout {
    /// The type.
    #[serde(rename = "type")]
    pub service_type: String,
    /// What it is moved to; none when the entry has left the catalog.
    pub target_version: Option<String>,
    /// `active` or `halted`.
    pub state: String,
    /// Why, when it was last halted or resumed.
    pub reason: Option<String>,
    /// By whom.
    pub by: Option<String>,
    /// Since when.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub since: Timestamp,
    /// Versions that instances run, most first.
    pub versions: Vec<VersionCount>,
    /// Upgrades that hold a slot.
    pub in_flight: i64,
    /// How many may.
    pub max_in_flight: i32,
    /// Those that do not run the target yet, in their order; at most 200.
    pub waiting: Vec<WaitingUpgrade>,
}

/// Every rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct RolloutsView {
    /// By type.
    pub items: Vec<Rollout>,
    /// The halt of everything.
    pub halted: Option<Halt>,
    /// Whatever is paused.
    pub pauses: Vec<Pause>,
}
