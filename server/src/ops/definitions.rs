//! What the controller looks after, as one may see it.

use super::Ops;
use crate::{
    authz::{Action, Actor, Scope, require},
    db,
    error::Error,
};
use jiff::Timestamp;
use svcforge_app::domain::{Definition, WorkflowView};

/// Rows shown of each.
pub const SHOWN: i64 = 1000;

/// ServiceDefinitions: those of services one may see, and those that svcforge did not make.
///
/// # Errors
/// From Postgres.
pub async fn definitions(ops: &Ops, actor: &Actor) -> Result<Vec<Definition>, Error> {
    require(actor, Action::ViewCatalog, Scope::Platform, "definitions")?;
    Ok(db::definition::list(&ops.pool, actor.visible_teams().as_deref(), SHOWN).await?)
}

/// When what is shown was last seen to be so, and why it could not be looked at since.
///
/// # Errors
/// From Postgres.
pub async fn definitions_read(
    ops: &Ops,
    actor: &Actor,
) -> Result<(Option<Timestamp>, Option<String>), Error> {
    require(actor, Action::ViewCatalog, Scope::Platform, "definitions")?;
    let read = db::definition::find_read(&ops.pool).await?;
    let late = "no reconciler has looked for more than 2 minutes";
    let error = read.error.or(read.late.then(|| late.to_owned()));
    Ok((read.at, error))
}

/// Workflows; none of them is svcforge's own.
///
/// # Errors
/// From Postgres.
pub async fn workflows(ops: &Ops, actor: &Actor) -> Result<Vec<WorkflowView>, Error> {
    require(actor, Action::ViewCatalog, Scope::Platform, "workflows")?;
    Ok(db::definition::list_workflows(&ops.pool, SHOWN).await?)
}
