//! The queue's moving parts: claim, run, heartbeat, finish, sweep, wake. Knows nothing of what tasks mean: that is a
//! [`Handler`]'s. Its SQL is in [`crate::db::queue`].

mod attempt;
mod sweep;
mod timing;
mod wake;
mod worker;

pub use attempt::{Attempt, Lost, Stop, inert};
pub use sweep::{Swept, sweep_forever, sweep_once};
pub use timing::Timing;
pub use wake::{Wake, listen};
pub use worker::{Worker, backoff};

use crate::db::queue::Claimed;
use async_trait::async_trait;

/// How an attempt ended, decided where the error is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Done.
    Done,
    /// It failed; another attempt may help.
    Failed(String),
    /// It failed; another attempt cannot help.
    Hopeless(String),
    /// Something it needs is away: an outage is not a failure.
    Waiting {
        /// What it waits for, e.g. `the Kubernetes API`.
        what: String,
        /// In the words of who saw it.
        error: String,
    },
    /// Somebody asked it to stop, and it did.
    Cancelled(String),
    /// svcforge stops; the task goes back unpunished.
    GiveBack,
    /// It may not start yet; nothing was done.
    NotYet {
        /// Why not.
        why: String,
        /// Not before.
        until: Option<jiff::Timestamp>,
    },
}

/// What tasks mean.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Kinds it handles; others are left for somebody else.
    fn kinds(&self) -> Vec<String>;

    /// Does it. Everything it writes outside its own rows must be fenced by the attempt's token.
    async fn run(&self, attempt: &Attempt) -> Ending;

    /// Writes what the ending means for the instance, in the transaction that ends the task. Not called for an attempt that
    /// has lost its lease. `last` when no attempt follows.
    async fn conclude(
        &self,
        tx: &mut sqlx::PgConnection,
        task: &Claimed,
        ending: &Ending,
        last: bool,
    ) -> sqlx::Result<()>;
}
