//! Teams, roles and who is asking.

use super::{TeamId, UserId};
use serde::{Deserialize, Serialize};

/// What a person may do in a team. Ordered: an owner may all that a member may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Looks.
    Viewer,
    /// Asks, changes, removes.
    Member,
    /// Runs the team.
    Owner,
}

impl Role {
    /// The word used in SQL and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Member => "member",
            Self::Owner => "owner",
        }
    }

    /// The role of that word.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Viewer, Self::Member, Self::Owner]
            .into_iter()
            .find(|r| r.as_str() == word)
    }
}

/// A team, as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Team {
    /// Its id.
    pub id: TeamId,
    /// Short name, used in URLs.
    pub slug: String,
    /// Name for people.
    pub title: String,
    /// The asker's role; none for an admin who is not a member.
    pub role: Option<Role>,
}

/// Who is asking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Me {
    /// User id.
    pub id: UserId,
    /// Name for people.
    pub name: String,
    /// Whether a platform admin.
    pub admin: bool,
    /// Their teams.
    pub teams: Vec<Team>,
}
