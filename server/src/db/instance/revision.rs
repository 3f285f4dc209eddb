//! Which revisions an instance points to, ran and was seen with.

use super::object;
use serde_json::{Map, Value};
use sqlx::{PgConnection, PgExecutor, PgPool};
use uuid::Uuid;

/// Points an instance to another revision with these parameters.
///
/// # Errors
/// From Postgres.
pub async fn repoint(
    db: &mut PgConnection,
    id: Uuid,
    revision: Uuid,
    parameters: &Value,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set entry_revision_id = $2, parameters = $3 where id = $1",
        id,
        revision,
        parameters
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Records the Helm revision that an attempt is about to write, or the generation of the definition that it applied and its uid. Fenced:
/// false when the attempt has lost its lease.
///
/// # Errors
/// From Postgres.
pub async fn record_revision(
    pool: &PgPool,
    id: Uuid,
    (revision, uid): (i32, Option<&str>),
    task: Uuid,
    token: i64,
) -> sqlx::Result<bool> {
    let recorded = sqlx::query!(
        "update instance set release_revision = $2, release_token = $4, release_uid = $5 where id = $1 and exists (select from task where id = $3 and token = $4)",
        id,
        revision,
        task,
        token,
        uid
    )
    .execute(pool)
    .await?;
    Ok(recorded.rows_affected() == 1)
}

/// Remembers what an instance runs now, when that differs from what it ran before.
///
/// # Errors
/// From Postgres.
pub async fn remember_revision(db: &mut PgConnection, id: Uuid, task: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into instance_revision (instance_id, entry_revision_id, parameters, task_id)
         select i.id, i.entry_revision_id, i.parameters, $2 from instance i
         where i.id = $1 and not exists (
            select from (select * from instance_revision where instance_id = $1 order by id desc limit 1) newest
            where newest.entry_revision_id = i.entry_revision_id and newest.parameters = i.parameters)",
        id,
        task
    )
    .execute(db)
    .await?;
    Ok(())
}

/// What an instance ran, newest first: revision, its version, parameters.
///
/// # Errors
/// From Postgres.
pub async fn list_revisions(
    db: impl PgExecutor<'_>,
    id: Uuid,
) -> sqlx::Result<Vec<(Uuid, String, Map<String, Value>)>> {
    let rows = sqlx::query!(
        "select v.entry_revision_id, r.chart_version, v.parameters from instance_revision v
         join entry_revision r on r.id = v.entry_revision_id where v.instance_id = $1 order by v.id desc limit 50",
        id
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| (r.entry_revision_id, r.chart_version, object(r.parameters)))
        .collect())
}

/// Takes the revision that is there for ours.
///
/// # Errors
/// From Postgres.
pub async fn set_revision(db: &mut PgConnection, id: Uuid, revision: i32) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set release_revision = $2 where id = $1",
        id,
        revision
    )
    .execute(db)
    .await?;
    Ok(())
}
