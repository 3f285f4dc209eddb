//! Instances and the one table of how they may change state.

use super::time::Timestamp;
use super::{
    DriftVerdict, EntryKind, InstanceId, Pause, Pin, Upgrade,
    readiness::{Readiness, Verdict},
    release::Release,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{fmt, str::FromStr};

/// Where an instance is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum InstanceState {
    /// Asked for; no worker has taken it up.
    Requested,
    /// A worker installs or repairs it.
    Provisioning,
    /// Installed and complete.
    Ready,
    /// A worker moves it to another revision or other parameters.
    Upgrading,
    /// The last attempt failed for good; a person may retry.
    Failed,
    /// Being removed.
    Deleting,
    /// Removed; only its history is left.
    Deleted,
}

use InstanceState::{Deleted, Deleting, Failed, Provisioning, Ready, Requested, Upgrading};

/// Every state, in the order of a life.
pub const STATES: [InstanceState; 7] = [
    Requested,
    Provisioning,
    Ready,
    Upgrading,
    Failed,
    Deleting,
    Deleted,
];

/// Every allowed change of state. Postgres enforces the same table (`instance_transition`); a test compares the two.
pub const TRANSITIONS: &[(InstanceState, InstanceState)] = &[
    (Requested, Provisioning),
    (Requested, Failed),
    (Provisioning, Ready),
    (Provisioning, Failed),
    (Ready, Upgrading),
    (Ready, Provisioning),
    (Upgrading, Ready),
    (Upgrading, Failed),
    (Failed, Provisioning),
    (Failed, Upgrading),
    (Requested, Deleting),
    (Provisioning, Deleting),
    (Ready, Deleting),
    (Upgrading, Deleting),
    (Failed, Deleting),
    (Deleting, Deleted),
    (Deleting, Ready),
];

impl InstanceState {
    /// The word used in SQL, JSON and URLs.
    pub fn as_str(self) -> &'static str {
        match self {
            Requested => "requested",
            Provisioning => "provisioning",
            Ready => "ready",
            Upgrading => "upgrading",
            Failed => "failed",
            Deleting => "deleting",
            Deleted => "deleted",
        }
    }

    /// Whether the table allows this change.
    pub fn may_become(self, to: InstanceState) -> bool {
        TRANSITIONS.contains(&(self, to))
    }
}

impl fmt::Display for InstanceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for InstanceState {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        STATES.into_iter().find(|v| v.as_str() == s).ok_or_else(|| {
            format!(
                "is not a state; one of {}",
                STATES.map(InstanceState::as_str).join(", ")
            )
        })
    }
}

/// An instance as API and portal show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Instance {
    /// Its id.
    pub id: InstanceId,
    /// Slug of the team that owns it.
    pub team: String,
    /// Catalog entry.
    #[serde(rename = "type")]
    pub service_type: String,
    /// How it is installed.
    pub kind: EntryKind,
    /// Its name, unique in the team while it lives.
    pub name: String,
    /// Where it is in its life.
    pub state: InstanceState,
    /// Since when.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub state_since: Timestamp,
    /// What Helm calls it.
    pub release: Release,
    /// Version of the revision it points to.
    pub chart_version: String,
    /// Version the catalog offers now; none when the entry has left the catalog.
    pub target_version: Option<String>,
    /// The parameters it was asked with.
    #[cfg_attr(feature = "ssr", schema(value_type = Object))]
    pub parameters: Map<String, Value>,
    /// How well it serves.
    pub readiness: Readiness,
    /// Whether the cluster still shows it.
    pub drift: DriftVerdict,
    /// What drift saw, in words.
    pub drift_detail: Option<String>,
    /// How it stands towards the catalog's version.
    pub upgrade: Upgrade,
    /// When the machine may upgrade it; always when none.
    pub maintenance_window: Option<String>,
    /// When that opens next; nothing when it cannot be read.
    #[cfg_attr(feature = "ssr", schema(value_type = Vec<String>))]
    pub next_openings: Vec<Timestamp>,
    /// Whether a person keeps it at its version.
    pub pin: Option<Pin>,
    /// Why svcforge holds it, if it does: a person chooses how to go on.
    pub hold: Option<String>,
    /// Whether svcforge does nothing there by itself.
    pub paused: Option<String>,
    /// Its own pause, which can be ended there.
    pub pause: Option<Pause>,
    /// When it is removed by itself; never when none.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
    /// Who asked for it.
    pub created_by: String,
    /// When it was asked for.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    /// When its row last changed.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub updated_at: Timestamp,
    /// What went wrong last, in the words of who knew.
    pub last_error: Option<String>,
    /// Counts changes; the `ETag`.
    pub version: i64,
}

impl Instance {
    /// The sentence a person reads first.
    pub fn headline(&self) -> String {
        match self.state {
            Requested => "Waiting for a worker".into(),
            Deleted => "Removed".into(),
            Failed => self
                .last_error
                .clone()
                .unwrap_or_else(|| "The last attempt failed".into()),
            _ => self.readiness.sentence.clone(),
        }
    }

    /// The word for the badge: the state, or the verdict where a ready instance does not serve.
    pub fn badge(&self) -> &'static str {
        match (self.state, self.readiness.verdict) {
            (Ready, Verdict::Failed) => "unhealthy",
            (Ready, Verdict::Progressing) => "settling",
            (Ready, Verdict::ScaledToZero) => "scaled to zero",
            (Ready, Verdict::Paused) => "paused",
            (state, _) => state.as_str(),
        }
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct InstancePage {
    /// Newest first.
    pub items: Vec<Instance>,
    /// Where the next page starts; none at the end.
    pub next_cursor: Option<String>,
}

/// One thing to copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct ConnectionField {
    /// Label, e.g. `URL`.
    pub name: String,
    /// What to copy; none while a secret is not revealed.
    pub value: Option<String>,
    /// Whether it is shown only on an audited reveal.
    pub secret: bool,
}

/// How to reach an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Connection {
    /// In the order of the catalog entry.
    pub fields: Vec<ConnectionField>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_moves_states() {
        assert!(Requested.may_become(Provisioning) && Deleting.may_become(Ready));
        assert!(
            !Deleted.may_become(Ready) && !Requested.may_become(Ready) && !Ready.may_become(Failed)
        );
        for state in STATES {
            assert!(!state.may_become(state), "{state} to itself is no change");
            assert_eq!(state.as_str().parse(), Ok(state));
            let removable = state.may_become(Deleting);
            assert_eq!(removable, !matches!(state, Deleting | Deleted), "{state}");
        }
    }
}
