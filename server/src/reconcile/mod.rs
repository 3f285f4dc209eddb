//! The reconciler: every tick compares the world with the database and enqueues what is missing. It diagnoses, workers treat: it
//! writes task rows and instance states, and reads the cluster. Exactly one acts, however many run ([`crate::lease`]).

pub mod checks;
mod run;
mod tick;

pub use run::{Once, run, run_once};
pub use tick::{CHECKS, Check, Ticked, tick};

use crate::{
    changes::Changes,
    cluster::Releases,
    lease::{Leading, NotLeading},
    notify::Notifier,
    queue::Timing,
};
use sqlx::PgPool;
use std::{sync::Arc, time::Duration};

/// Settings of the checks.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Whose instances are upgraded first.
    pub own_team: String,
    /// Upgrades at once a type, where its entry says nothing.
    pub max_in_flight: i32,
    /// Whether every unknown release is logged, not only those that should be ours.
    pub all_orphans: bool,
    /// Between ticks.
    pub interval: Duration,
    /// How long an interrupted removal may be a person at work.
    pub patience: Duration,
    /// Spans of the queue.
    pub timing: Timing,
}

/// Everything a check needs, handed to it.
#[derive(Clone)]
pub struct Context {
    /// Postgres.
    pub pool: PgPool,
    /// The proof that fences every write.
    pub leading: Leading,
    /// What the cluster shows; none where there is no cluster.
    pub releases: Option<Arc<dyn Releases>>,
    /// Who is told.
    pub notifier: Arc<dyn Notifier>,
    /// Settings.
    pub rules: Rules,
    /// Tells other processes.
    pub changes: Changes,
    /// Labels what is ours.
    pub installation: String,
    /// Whether this is a tick's look at everything, or one in between that a watch asked for.
    pub whole: bool,
}

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Postgres said so.
    #[error("database: {0}")]
    Db(#[from] sqlx::Error),
    /// The cluster could not be read, or not be believed.
    #[error("{0}")]
    Cluster(String),
    /// Somebody else leads now.
    #[error("{0}")]
    NotLeading(String),
    /// It took longer than it may.
    #[error("it took longer than {0} s and was given up")]
    Overran(u64),
    /// A bug.
    #[error("it panicked: {0}")]
    Panicked(String),
}

impl From<NotLeading> for CheckError {
    fn from(error: NotLeading) -> Self {
        match error {
            NotLeading::Lost => Self::NotLeading(NotLeading::Lost.to_string()),
            NotLeading::Db(error) => Self::Db(error),
        }
    }
}
