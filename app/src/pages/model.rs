//! What pages ask for, beyond the domain's own words.

use crate::domain::{Connection, Event, Instance, LogLine, Me, Problem, Task};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Filters of the services page; they live in its URL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceQuery {
    /// Slug of a team.
    pub team: Option<String>,
    /// Catalog entry.
    pub service_type: Option<String>,
    /// A state.
    pub state: Option<String>,
    /// A drift verdict.
    pub drift: Option<String>,
    /// Part of a name.
    pub q: Option<String>,
    /// Where the page starts.
    pub cursor: Option<String>,
}

/// What the header says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteInfo {
    /// Who is signed in.
    pub me: Me,
    /// What kind of cluster it is, when it is not a real one.
    pub cluster_note: Option<String>,
    /// What is stopped everywhere, in words: on every page.
    pub banners: Vec<String>,
}

/// Everything the service page shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceDetail {
    /// The instance.
    pub instance: Instance,
    /// Its entry's title.
    pub title: String,
    /// Newest first.
    pub tasks: Vec<Task>,
    /// The log of the newest task.
    pub log: Vec<LogLine>,
    /// Newest first.
    pub events: Vec<Event>,
    /// How to reach it.
    pub connection: Connection,
    /// Whether the asker may change it.
    pub may_change: bool,
    /// Whether the asker may remove it.
    pub may_delete: bool,
    /// Whether the asker may see its secrets.
    pub may_reveal: bool,
    /// What is lost when it is removed, in words.
    pub loses: String,
}

/// What a posted form comes back with: the values as typed, and what is wrong; or an answer to show once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FormFlash {
    /// As typed.
    pub values: BTreeMap<String, String>,
    /// What is wrong.
    pub problem: Option<Problem>,
    /// Secrets that were just revealed.
    pub revealed: Option<Connection>,
    /// The page itself, where the server draws it whole.
    pub html: Option<String>,
    /// A fresh key for the next post of this form.
    pub key: String,
}

impl FormFlash {
    /// The value typed under a name.
    pub fn value(&self, name: &str) -> Option<String> {
        self.values.get(name).cloned()
    }

    /// What is wrong at a pointer.
    pub fn error(&self, pointer: &str) -> Option<String> {
        self.problem.as_ref().and_then(|p| p.at(pointer))
    }
}
