//! Tasks whose worker died go back to the queue. The sweep does the same every few seconds; here it is the guarantee.

use super::super::{CheckError, Context};
use crate::queue::sweep_once;

/// Runs the sweep; `lease.expired` is told where tasks were freed.
///
/// # Errors
/// From Postgres.
pub async fn run(cx: &Context) -> Result<(), CheckError> {
    let swept = sweep_once(&cx.pool, &cx.rules.timing).await?;
    if swept != crate::queue::Swept::default() {
        cx.changes.work();
    }
    Ok(())
}
