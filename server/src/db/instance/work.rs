//! What a worker needs to know of an instance.

use super::{object, state};
use serde_json::{Map, Value};
use sqlx::PgExecutor;
use svcforge_app::domain::InstanceState;
use uuid::Uuid;

/// What a worker needs to install or remove an instance.
#[derive(Clone, Debug)]
pub struct Work {
    /// Its state.
    pub state: InstanceState,
    /// Slug of its team.
    pub team: String,
    /// Its name.
    pub name: String,
    /// Catalog entry.
    pub service_type: String,
    /// Release or object name.
    pub release_name: String,
    /// Where it lives.
    pub release_namespace: String,
    /// The highest revision an attempt of ours recorded.
    pub release_revision: Option<i32>,
    /// That attempt's token.
    pub release_token: Option<i64>,
    /// The revision it points to.
    pub entry_revision_id: Uuid,
    /// Checked and completed.
    pub parameters: Map<String, Value>,
}

/// Reads that.
///
/// # Errors
/// From Postgres.
pub async fn load_work(db: impl PgExecutor<'_>, id: Uuid) -> sqlx::Result<Work> {
    let r = sqlx::query!(
        "select i.state, t.slug, i.name, i.service_type, i.release_name, i.release_namespace, i.release_revision, i.release_token, i.entry_revision_id, i.parameters
         from instance i join team t on t.id = i.team_id where i.id = $1",
        id
    )
    .fetch_one(db)
    .await?;
    Ok(Work {
        state: state(&r.state)?,
        team: r.slug,
        name: r.name,
        service_type: r.service_type,
        release_name: r.release_name,
        release_namespace: r.release_namespace,
        release_revision: r.release_revision,
        release_token: r.release_token,
        entry_revision_id: r.entry_revision_id,
        parameters: object(r.parameters),
    })
}
