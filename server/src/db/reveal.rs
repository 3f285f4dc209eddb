//! Reveals: asked by the web, answered by a worker, sealed in between.

use sqlx::PgPool;
use std::time::Duration;
use uuid::Uuid;

/// A reveal that waits for a worker.
#[derive(Debug)]
pub struct Asked {
    /// Its id.
    pub id: Uuid,
    /// Whose credentials.
    pub instance_id: Uuid,
    /// To seal to.
    pub public_key: Vec<u8>,
}

/// Leaves a question.
///
/// # Errors
/// From Postgres.
pub async fn insert(
    pool: &PgPool,
    id: Uuid,
    instance: Uuid,
    public_key: &[u8],
    lifetime: Duration,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into reveal (id, instance_id, public_key, expires_at) values ($1, $2, $3, clock_timestamp() + make_interval(secs => $4))",
        id,
        instance,
        public_key,
        lifetime.as_secs_f64()
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Questions without an answer.
///
/// # Errors
/// From Postgres.
pub async fn list_open(pool: &PgPool) -> sqlx::Result<Vec<Asked>> {
    sqlx::query_as!(
        Asked,
        "select id, instance_id, public_key from reveal where sealed is null and error is null and expires_at > clock_timestamp() limit 20"
    )
    .fetch_all(pool)
    .await
}

/// Leaves an answer, once.
///
/// # Errors
/// From Postgres.
pub async fn answer(pool: &PgPool, id: Uuid, sealed: Result<&[u8], &str>) -> sqlx::Result<()> {
    sqlx::query!(
        "update reveal set sealed = $2, error = $3 where id = $1 and sealed is null and error is null",
        id,
        sealed.ok(),
        sealed.err()
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Takes the answer away, if there is one: it can be had once.
///
/// # Errors
/// From Postgres.
pub async fn take(pool: &PgPool, id: Uuid) -> sqlx::Result<Option<Result<Vec<u8>, String>>> {
    let row = sqlx::query!("delete from reveal where id = $1 and (sealed is not null or error is not null) returning sealed, error", id)
        .fetch_optional(pool)
        .await?;
    Ok(row.map(|r| r.sealed.ok_or_else(|| r.error.unwrap_or_default())))
}

/// Removes what nobody fetched.
///
/// # Errors
/// From Postgres.
pub async fn delete_expired(pool: &PgPool) -> sqlx::Result<()> {
    sqlx::query!("delete from reveal where expires_at < clock_timestamp()")
        .execute(pool)
        .await?;
    Ok(())
}
