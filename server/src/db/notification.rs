//! The outbox of notifications.

use serde_json::Value;
use sqlx::{PgExecutor, PgPool};
use uuid::Uuid;

/// Writes notifications, each a kind and a payload, to be sent to each of these sinks.
///
/// # Errors
/// From Postgres.
pub async fn insert(
    db: impl PgExecutor<'_>,
    kinds: &[String],
    payloads: &[Value],
    sinks: &[String],
) -> sqlx::Result<()> {
    let ids: Vec<Uuid> = kinds.iter().map(|_| crate::ids::new_id()).collect();
    sqlx::query!(
        "with n as (insert into notification (id, kind, payload) select * from unnest($1::uuid[], $2::text[], $3::jsonb[]) returning id)
         insert into notification_delivery (notification_id, sink) select n.id, s from n, unnest($4::text[]) s",
        &ids,
        kinds,
        payloads,
        sinks
    )
    .execute(db)
    .await?;
    Ok(())
}

/// As [`insert`], to the sinks that the leader last named: for those who do not know them.
///
/// # Errors
/// From Postgres.
pub async fn insert_where_told(
    db: impl PgExecutor<'_>,
    kind: &str,
    payload: &Value,
) -> sqlx::Result<()> {
    sqlx::query!(
        "with n as (insert into notification (id, kind, payload) values ($1, $2, $3) returning id)
         insert into notification_delivery (notification_id, sink) select n.id, s.sink from n, notification_sink s",
        crate::ids::new_id(),
        kind,
        payload
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Names the sinks.
///
/// # Errors
/// From Postgres.
pub async fn set_sinks(pool: &PgPool, sinks: &[String]) -> sqlx::Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query!("delete from notification_sink where sink <> all($1)", sinks)
        .execute(&mut *tx)
        .await?;
    sqlx::query!(
        "insert into notification_sink (sink) select unnest($1::text[]) on conflict do nothing",
        sinks
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}

/// A delivery that is due.
#[derive(Clone, Debug)]
pub struct Due {
    /// Which notification; the receiver's key against doubles.
    pub id: Uuid,
    /// To whom.
    pub sink: String,
    /// Of what kind.
    pub kind: String,
    /// With what.
    pub payload: Value,
    /// How often it was tried before.
    pub attempt: i32,
    /// When it happened.
    pub created_at: super::Timestamptz,
}

/// Takes due deliveries: each is put off first, so that a sender that dies tries again later and no second one sends beside it.
///
/// # Errors
/// From Postgres.
pub async fn take_due(pool: &PgPool, sinks: &[String], limit: i64) -> sqlx::Result<Vec<Due>> {
    sqlx::query_as!(
        Due,
        r#"with due as materialized (
             select notification_id, sink from notification_delivery
             where delivered_at is null and given_up_at is null and next_at <= now() and sink = any($1)
             order by next_at limit $2 for update skip locked)
           update notification_delivery d set attempt = d.attempt + 1, next_at = now() + interval '1 minute'
           from due, notification n
           where d.notification_id = due.notification_id and d.sink = due.sink and n.id = d.notification_id
           returning n.id, d.sink, n.kind, n.payload, d.attempt - 1 as "attempt!", n.created_at"#,
        sinks,
        limit
    )
    .fetch_all(pool)
    .await
}

/// It arrived.
///
/// # Errors
/// From Postgres.
pub async fn delivered(pool: &PgPool, id: Uuid, sink: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "update notification_delivery set delivered_at = now(), error = null where notification_id = $1 and sink = $2",
        id,
        sink
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// It did not: again after the pause, or not at all any more.
///
/// # Errors
/// From Postgres.
pub async fn failed(
    pool: &PgPool,
    id: Uuid,
    sink: &str,
    error: &str,
    pause: Option<std::time::Duration>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update notification_delivery set error = $3, next_at = now() + make_interval(secs => coalesce($4::double precision, 0)),
                given_up_at = case when $4::double precision is null then now() end
         where notification_id = $1 and sink = $2",
        id,
        sink,
        error,
        pause.map(|p| p.as_secs_f64())
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Forgets what is older than a month.
///
/// # Errors
/// From Postgres.
pub async fn delete_old(pool: &PgPool) -> sqlx::Result<()> {
    sqlx::query!("delete from notification where created_at < now() - interval '30 days'")
        .execute(pool)
        .await?;
    Ok(())
}
