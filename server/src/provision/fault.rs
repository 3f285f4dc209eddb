//! Why something could not be done, by what to do about it.

use crate::queue::{Ending, Stop};

/// A failure of a provisioner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Something it needs is away; nothing is wrong with the instance.
    #[error("waiting for {what}: {error}")]
    Outage {
        /// E.g. `the Kubernetes API`.
        what: String,
        /// In the words of who saw it.
        error: String,
    },
    /// Trying again cannot help: the chart does not render, the object is refused.
    #[error("{0}")]
    Rejected(String),
    /// Trying again may help.
    #[error("{0}")]
    Failed(String),
    /// It may not start yet.
    #[error("not yet: {why}")]
    NotYet {
        /// Why not.
        why: String,
        /// Not before.
        until: Option<jiff::Timestamp>,
    },
    /// The attempt was told to stop, and did.
    #[error("stopped: {0:?}")]
    Stopped(Stop),
}

impl Fault {
    /// What the attempt ends in.
    pub fn into_ending(self) -> Ending {
        match self {
            Self::Outage { what, error } => Ending::Waiting { what, error },
            Self::Rejected(error) => Ending::Hopeless(error),
            Self::Failed(error) => Ending::Failed(error),
            Self::NotYet { why, until } => Ending::NotYet { why, until },
            Self::Stopped(Stop::Asked(why)) => Ending::Cancelled(why),
            Self::Stopped(Stop::Deadline) => {
                Ending::Failed("it ran for too long and was stopped".into())
            }
            Self::Stopped(Stop::Shutdown | Stop::LeaseLost) => Ending::GiveBack,
        }
    }
}

impl From<crate::queue::Lost> for Fault {
    fn from(lost: crate::queue::Lost) -> Self {
        match lost {
            crate::queue::Lost::Lease => Self::Stopped(Stop::LeaseLost),
            crate::queue::Lost::Db(error) => error.into(),
        }
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        if crate::error::is_outage(&error) {
            return Self::Outage {
                what: "Postgres".into(),
                error: error.to_string(),
            };
        }
        Self::Failed(format!("database: {error}"))
    }
}
