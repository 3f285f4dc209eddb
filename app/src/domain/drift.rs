//! Drift as API and portal show it.

use super::{InstanceId, time::Timestamp};
use serde::{Deserialize, Serialize};

/// Whether the cluster still shows what was installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum DriftVerdict {
    /// Nothing is expected in the cluster (yet, or any more).
    None,
    /// As it was installed.
    Present,
    /// Its release is not there any more.
    Gone,
    /// Its newest revision was not written by svcforge.
    Changed,
    /// Nobody could look.
    Unknown,
}

impl DriftVerdict {
    /// The word used in SQL and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Present => "present",
            Self::Gone => "gone",
            Self::Changed => "changed",
            Self::Unknown => "unknown",
        }
    }

    /// The verdict of that word.
    pub fn parse(word: &str) -> Option<Self> {
        [
            Self::None,
            Self::Present,
            Self::Gone,
            Self::Changed,
            Self::Unknown,
        ]
        .into_iter()
        .find(|v| v.as_str() == word)
    }
}

/// An instance that is not as it was installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct DriftItem {
    /// Which one.
    pub instance: InstanceId,
    /// Its name.
    pub name: String,
    /// Its team.
    pub team: String,
    /// Its release.
    pub release: String,
    /// Where that is.
    pub namespace: String,
    /// What was seen.
    pub detail: String,
    /// Since when.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub since: Timestamp,
}

/// A release that the database knows nothing of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Orphan {
    /// Its id here.
    pub id: uuid::Uuid,
    /// Its name.
    pub release: String,
    /// Where it is.
    pub namespace: String,
    /// Whose it is, as far as its labels tell.
    pub owner: String,
    /// When it was first seen.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub first_seen_at: Timestamp,
    /// When it was last seen.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub last_seen_at: Timestamp,
    /// `open`, `ignored`, `adopted` or `removed`.
    pub status: String,
    /// Who said so.
    pub status_by: Option<String>,
}

/// What a removed service left in the cluster because its entry or its chart keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Leftover {
    /// Whose it was.
    pub instance: InstanceId,
    /// Its name.
    pub service: String,
    /// Its team.
    pub team: String,
    /// Kubernetes kind.
    pub kind: String,
    /// Where it is.
    pub namespace: String,
    /// What it is called.
    pub name: String,
    /// Since when it is all that is left.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub kept_at: Timestamp,
    /// Until when the entry wants it kept; without end when it is the chart that does. svcforge removes nothing by itself.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub keep_until: Option<Timestamp>,
    /// When it was last seen.
    #[cfg_attr(feature = "ssr", schema(value_type = String, format = DateTime))]
    pub last_seen_at: Timestamp,
}

/// The brake on repairs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Brake {
    /// Whether it is on.
    pub open: bool,
    /// Why.
    pub reason: Option<String>,
    /// Since when.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub since: Option<Timestamp>,
    /// Which list it keeps back: a release names the one that was shown.
    pub list: Option<String>,
    /// Who has released the list that it was asked for, if somebody has.
    pub released_by: Option<String>,
}

/// Everything that is not as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct DriftView {
    /// Whose release is gone.
    pub gone: Vec<DriftItem>,
    /// Whose release somebody else has changed.
    pub changed: Vec<DriftItem>,
    /// Of whom nothing is known.
    pub unknown: Vec<DriftItem>,
    /// Releases of another installation.
    pub foreign: Vec<Orphan>,
    /// Releases of nobody svcforge knows, in places it does not manage.
    pub unmanaged: Vec<Orphan>,
    /// Releases that should be ours and are in no row.
    pub orphans: Vec<Orphan>,
    /// What removed services left, because their entries or charts keep it.
    pub leftovers: Vec<Leftover>,
    /// The brake on repairs.
    pub breaker: Brake,
    /// When the cluster was last read.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub swept_at: Option<Timestamp>,
    /// Why it could not be read, when it could not.
    pub sweep_error: Option<String>,
}
