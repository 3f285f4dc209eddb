//! A service's settings as a form shows them: what is set, and the fields of the revision it runs.

use super::Ops;
use crate::{
    authz::{Action, Actor},
    db,
    error::Error,
};
use serde_json::{Map, Value};
use svcforge_app::domain::FormField;
use uuid::Uuid;

/// Settings of one instance.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: i64,
    /// The schema of the revision it runs.
    pub schema: Value,
    /// Its fields, in their order.
    pub fields: Vec<FormField>,
    /// What is set.
    pub parameters: Map<String, Value>,
}

/// Loads them, for one who may change them.
///
/// # Errors
/// 404, 403.
pub async fn settings(ops: &Ops, actor: &Actor, id: Uuid) -> Result<Settings, Error> {
    ops.require_on(actor, Action::ChangeInstance, id).await?;
    let instance = super::find_instance(&ops.pool, id).await?;
    let work = db::instance::load_work(&ops.pool, id).await?;
    let (revision, _) = db::catalog::load(&ops.pool, work.entry_revision_id).await?;
    Ok(Settings {
        name: instance.name,
        version: instance.version,
        fields: revision.entry.view().form(),
        schema: revision.entry.parameters,
        parameters: work.parameters,
    })
}
