//! Lanes: one an instance, one head each.

use sqlx::PgConnection;
use uuid::Uuid;

/// Locks the lanes of these instances, in an order that cannot deadlock. Always its own statement, always first.
///
/// # Errors
/// From Postgres.
pub async fn lock_lanes(db: &mut PgConnection, instances: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!(
        "select id from instance where id = any($1) order by id for no key update",
        instances
    )
    .fetch_all(db)
    .await?;
    Ok(())
}

/// Demotes heads that something better overtakes, then gives every lane without a head its best due task. The lanes must be locked.
pub(super) async fn settle(db: &mut PgConnection, instances: &[Uuid]) -> sqlx::Result<u64> {
    demote(db, instances).await?;
    promote(db, instances).await
}

pub(super) async fn demote(db: &mut PgConnection, instances: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!(
        "update task h set state = 'blocked'
         where h.instance_id = any($1) and h.state = 'ready'
           and exists (select from task w where w.instance_id = h.instance_id and w.state = 'blocked' and w.priority < h.priority)",
        instances
    )
    .execute(db)
    .await?;
    Ok(())
}

pub(super) async fn promote(db: &mut PgConnection, instances: &[Uuid]) -> sqlx::Result<u64> {
    let promoted = sqlx::query_scalar!("select promote_lanes($1) as \"n!\"", instances)
        .fetch_one(db)
        .await?;
    Ok(promoted.unsigned_abs())
}
