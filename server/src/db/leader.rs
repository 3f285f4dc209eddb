//! The lease's row.

use super::Timestamptz;
use crate::lease::{Holder, Leading};
use sqlx::{PgConnection, PgPool};
use std::time::Duration;
use uuid::Uuid;

/// Takes the lease when it is free or was ours. A takeover changes the epoch, and so waits for leader writes under way.
///
/// # Errors
/// From Postgres.
pub async fn take(
    db: &mut PgConnection,
    name: &str,
    me: Uuid,
    holds: Duration,
) -> sqlx::Result<Option<Leading>> {
    sqlx::query_as!(
        Leading,
        "insert into leader (name, epoch, holder, since, expires_at)
         values ($1, 1, $2, clock_timestamp(), clock_timestamp() + make_interval(secs => $3))
         on conflict (name) do update set epoch = leader.epoch + 1, holder = excluded.holder, since = excluded.since, expires_at = excluded.expires_at
         where leader.expires_at < clock_timestamp() returning epoch",
        name,
        me,
        holds.as_secs_f64()
    )
    .fetch_optional(db)
    .await
}

/// Renews it: touches only the expiry. False when another epoch leads.
///
/// # Errors
/// From Postgres.
pub async fn renew(
    db: &mut PgConnection,
    name: &str,
    epoch: i64,
    holds: Duration,
) -> sqlx::Result<bool> {
    let renewed = sqlx::query!(
        "update leader set expires_at = clock_timestamp() + make_interval(secs => $3) where name = $1 and epoch = $2",
        name,
        epoch,
        holds.as_secs_f64()
    )
    .execute(db)
    .await?;
    Ok(renewed.rows_affected() == 1)
}

/// Ends it now.
///
/// # Errors
/// From Postgres.
pub async fn give_up(db: &mut PgConnection, name: &str, epoch: i64) -> sqlx::Result<()> {
    sqlx::query!(
        "update leader set expires_at = clock_timestamp() where name = $1 and epoch = $2",
        name,
        epoch
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Ends the lease of whoever held it: for `up`, whose database nobody else can have.
///
/// # Errors
/// From Postgres.
pub async fn free(pool: &PgPool) -> sqlx::Result<()> {
    sqlx::query!("update leader set expires_at = clock_timestamp() - interval '1 second'")
        .execute(pool)
        .await?;
    Ok(())
}

/// Whether that epoch leads; holds off a takeover until the transaction ends. `FOR KEY SHARE`: a renewal passes.
///
/// # Errors
/// From Postgres.
pub async fn confirm(db: &mut PgConnection, name: &str, epoch: i64) -> sqlx::Result<bool> {
    sqlx::query!("set local idle_in_transaction_session_timeout = '5s'")
        .execute(&mut *db)
        .await?;
    let row = sqlx::query!(
        "select epoch from leader where name = $1 and epoch = $2 for key share",
        name,
        epoch
    )
    .fetch_optional(db)
    .await?;
    Ok(row.is_some())
}

/// Who holds it.
///
/// # Errors
/// From Postgres.
pub async fn find(pool: &PgPool, name: &str) -> sqlx::Result<Option<Holder>> {
    let row = sqlx::query!(
        "select holder, since from leader where name = $1 and expires_at > clock_timestamp()",
        name
    )
    .fetch_optional(pool)
    .await?;
    Ok(row.map(|r| Holder {
        id: r.holder,
        since: Timestamptz::to_jiff(r.since),
    }))
}
