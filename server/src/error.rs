//! Errors in tiers: a [`Problem`] is for the asker to put right; everything else is ours, logged once with its cause and
//! shown without it.

use svcforge_app::domain::Problem;

/// What an operation may end in.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The asker can put it right.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// Postgres said so.
    #[error("database: {0}")]
    Db(#[from] sqlx::Error),
    /// Anything else of ours.
    #[error("{0:#}")]
    Internal(#[from] anyhow::Error),
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

impl Error {
    /// What the asker is shown. Logs the cause of what is ours.
    pub fn into_problem(self) -> Problem {
        match self {
            Self::Problem(problem) => *problem,
            Self::Db(error) if is_outage(&error) => {
                tracing::warn!(event = "db.unavailable", error = %error);
                Problem::unavailable(
                    "The database cannot be reached. Nothing was changed; try again in a few seconds.",
                )
            }
            other => {
                tracing::error!(event = "request.failed", error = %other);
                Problem::internal()
            }
        }
    }
}

/// Whether Postgres is away, as opposed to a mistake of ours.
pub fn is_outage(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        // Class 08 connection, 53 resources, 57P0x shutdown and start-up, 57014 statement timeout, 25006 read-only.
        sqlx::Error::Database(e) => e.code().is_some_and(|code| {
            code.starts_with("08")
                || code.starts_with("53")
                || code.starts_with("57")
                || code == "25006"
        }),
        _ => false,
    }
}

/// The name of the constraint that a write ran into.
pub fn constraint(error: &sqlx::Error) -> Option<&str> {
    error.as_database_error().and_then(|e| e.constraint())
}
