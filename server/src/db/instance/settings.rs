//! What people set: expiry, hold, pin, window.

use crate::db::Timestamptz;
use jiff::Timestamp;
use sqlx::PgConnection;
use uuid::Uuid;

/// Sets when an instance is removed by itself.
///
/// # Errors
/// From Postgres.
pub async fn set_expiry(
    db: &mut PgConnection,
    id: Uuid,
    at: Option<Timestamp>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set expires_at = $2 where id = $1",
        id,
        at.map(Timestamptz::from) as Option<Timestamptz>
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Holds an instance at its version until the catalog moves on from what it offers now, or a person says otherwise.
///
/// # Errors
/// From Postgres.
pub async fn hold_version(db: &mut PgConnection, id: Uuid, reason: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set hold_kind = 'rollback', hold_reason = $2, hold_since = now(),
                hold_target = (select target_id from standing where instance_id = $1)
         where id = $1",
        id,
        reason
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Ends a hold.
///
/// # Errors
/// From Postgres.
pub async fn end_hold(db: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set hold_kind = null, hold_reason = null, hold_since = null, hold_target = null where id = $1",
        id
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Pins an instance to its version until then, or unpins it.
///
/// # Errors
/// From Postgres.
pub async fn set_pin(
    db: &mut PgConnection,
    id: Uuid,
    pin: Option<(Timestamp, &str, &str)>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set pin_until = $2, pin_reason = $3, pin_by = $4 where id = $1",
        id,
        pin.map(|p| Timestamptz::from(p.0)) as Option<Timestamptz>,
        pin.map(|p| p.1),
        pin.map(|p| p.2)
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Sets when the machine may upgrade it; always when none.
///
/// # Errors
/// From Postgres.
pub async fn set_window(db: &mut PgConnection, id: Uuid, window: Option<&str>) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set maintenance_window = $2 where id = $1",
        id,
        window
    )
    .execute(&mut *db)
    .await?;
    // What was parked for the old window is asked again.
    sqlx::query!(
        "update task set state = 'gated', run_after = now() where instance_id = $1 and state = 'parked' and slot_since is null
           and act = 'upgrade'",
        id
    )
    .execute(db)
    .await?;
    Ok(())
}
