//! Repeated POSTs: the first one's answer, kept in the transaction of its effect.

use sqlx::PgConnection;
use uuid::Uuid;

/// What an earlier POST with that key asked and made.
#[derive(Debug)]
pub struct Earlier {
    /// SHA-256 of its body.
    pub digest: Vec<u8>,
    /// What it made.
    pub instance_id: Uuid,
}

/// Takes the key for `instance_id`, whose row must exist by commit; or returns what took it before. A concurrent POST with
/// the same key waits here for the first one's end.
///
/// # Errors
/// From Postgres.
pub async fn take(
    db: &mut PgConnection,
    user: Uuid,
    key: &str,
    digest: &[u8],
    instance_id: Uuid,
) -> sqlx::Result<Option<Earlier>> {
    let taken = sqlx::query!(
        "insert into idempotency (user_id, key, digest, instance_id) values ($1, $2, $3, $4) on conflict do nothing",
        user,
        key,
        digest,
        instance_id
    )
    .execute(&mut *db)
    .await?;
    if taken.rows_affected() == 1 {
        return Ok(None);
    }
    sqlx::query_as!(
        Earlier,
        "select digest, instance_id from idempotency where user_id = $1 and key = $2",
        user,
        key
    )
    .fetch_optional(db)
    .await
}

/// Removes keys older than a day.
///
/// # Errors
/// From Postgres.
pub async fn delete_old(pool: &sqlx::PgPool) -> sqlx::Result<()> {
    sqlx::query!("delete from idempotency where created_at < now() - interval '1 day'")
        .execute(pool)
        .await?;
    Ok(())
}
