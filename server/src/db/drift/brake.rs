//! Repairs, and the brake on them.

use sqlx::{PgConnection, PgExecutor};
use svcforge_app::domain::Brake;
use uuid::Uuid;

/// What the brake counts.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Ready instances.
    pub ready: i64,
    /// Repairs in the last hour that no release covered.
    pub used: i64,
    /// Instances that an admin's release covers.
    pub released: Vec<Uuid>,
    /// Whether the brake is on and nobody has released it.
    pub asked: Vec<Uuid>,
}

/// Reads that. Locks the brake, so that tick and watch cannot both spend the same rest.
///
/// # Errors
/// From Postgres.
pub async fn budget(db: &mut PgConnection) -> sqlx::Result<Budget> {
    let brake = sqlx::query!(
        "select asked, released_at is not null as released from drift_brake for update"
    )
    .fetch_optional(&mut *db)
    .await?;
    let counts = sqlx::query!(
        r#"select (select count(*) from instance where state = 'ready') as "ready!",
                  (select count(*) from drift_repair where at > now() - interval '1 hour' and not released) as "used!""#
    )
    .fetch_one(db)
    .await?;
    let (asked, released) = match brake {
        Some(b) if b.released == Some(true) => (vec![], b.asked),
        Some(b) => (b.asked, vec![]),
        None => (vec![], vec![]),
    };
    Ok(Budget {
        ready: counts.ready,
        used: counts.used,
        released,
        asked,
    })
}

/// Puts the brake on for that list; an admin is asked. Keeps the first moment and a release that covers all of it.
///
/// # Errors
/// From Postgres.
pub async fn set_brake(db: &mut PgConnection, asked: &[Uuid], reason: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into drift_brake (since, reason, asked) values (now(), $2, $1)
         on conflict (only_row) do update set reason = excluded.reason, asked = excluded.asked,
            since = case when drift_brake.released_at is null then drift_brake.since else now() end,
            released_by = null, released_at = null, release_reason = null
         where drift_brake.released_at is null and drift_brake.asked is distinct from excluded.asked or drift_brake.released_at is not null",
        asked,
        reason
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Takes the brake off: nothing is left that it keeps back.
///
/// # Errors
/// From Postgres.
pub async fn clear_brake(db: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("delete from drift_brake").execute(db).await?;
    Ok(())
}

/// An admin lets the list go that was shown. False when nothing is asked, or another list by now.
///
/// # Errors
/// From Postgres.
pub async fn release_brake(
    db: &mut PgConnection,
    list: &str,
    by: &str,
    reason: &str,
) -> sqlx::Result<bool> {
    let released = sqlx::query!(
        "update drift_brake set released_by = $1, released_at = now(), release_reason = $2 where released_at is null and md5(asked::text) = $3",
        by,
        reason,
        list
    )
    .execute(db)
    .await?;
    Ok(released.rows_affected() == 1)
}

/// The brake as it is shown.
///
/// # Errors
/// From Postgres.
pub async fn find_brake(db: impl PgExecutor<'_>) -> sqlx::Result<Brake> {
    let row = sqlx::query!(
        r#"select since, reason, released_by, md5(asked::text) as "list!" from drift_brake"#
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map_or_else(Brake::default, |r| Brake {
        open: r.released_by.is_none(),
        reason: Some(r.reason),
        since: Some(r.since.to_jiff()),
        list: Some(r.list),
        released_by: r.released_by,
    }))
}

/// `ready` → `provisioning` by compare-and-set for those whose lane is free. The lanes must be locked. Returns those moved.
///
/// # Errors
/// From Postgres.
pub async fn begin_repairs(db: &mut PgConnection, ids: &[Uuid]) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        "update instance set state = 'provisioning'
         where id = any($1) and state = 'ready'
           and not exists (select from task k where k.instance_id = instance.id
                             and (k.kind in ('provision', 'deprovision', 'rollback') or k.kind = 'upgrade' and k.state = 'running'))
         returning id",
        ids
    )
    .fetch_all(db)
    .await
}

/// Remembers repairs.
///
/// # Errors
/// From Postgres.
pub async fn count_repairs(
    db: &mut PgConnection,
    ids: &[Uuid],
    released: &[Uuid],
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into drift_repair (instance_id, released) select id, id = any($2) from unnest($1::uuid[]) as n (id)",
        ids,
        released
    )
    .execute(db)
    .await?;
    Ok(())
}
