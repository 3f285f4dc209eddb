//! Timelines of instances.

use sqlx::{PgConnection, PgPool};
use svcforge_app::domain::Event;
use uuid::Uuid;

/// Something to put on a timeline.
#[derive(Debug)]
pub struct NewEvent<'a> {
    /// Whose timeline.
    pub instance_id: Uuid,
    /// A stable word.
    pub kind: &'a str,
    /// A user's name or a part of svcforge.
    pub actor: &'a str,
    /// One sentence.
    pub message: &'a str,
    /// The task it belongs to.
    pub task_id: Option<Uuid>,
}

/// Adds an event.
///
/// # Errors
/// From Postgres.
pub async fn insert(db: &mut PgConnection, event: NewEvent<'_>) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into instance_event (instance_id, kind, actor, message, task_id, request_id) values ($1, $2, $3, $4, $5, $6)",
        event.instance_id,
        event.kind,
        event.actor,
        event.message,
        event.task_id,
        crate::http::request_id::current(),
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Adds many events in one statement.
///
/// # Errors
/// From Postgres.
pub async fn insert_many(db: &mut PgConnection, events: &[NewEvent<'_>]) -> sqlx::Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let text = |f: fn(&NewEvent<'_>) -> String| events.iter().map(f).collect::<Vec<String>>();
    sqlx::query!(
        "insert into instance_event (instance_id, kind, actor, message, task_id)
         select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[])",
        &events.iter().map(|e| e.instance_id).collect::<Vec<_>>(),
        &text(|e| e.kind.to_owned()),
        &text(|e| e.actor.to_owned()),
        &text(|e| e.message.to_owned()),
        &events.iter().map(|e| e.task_id).collect::<Vec<_>>() as _
    )
    .execute(db)
    .await?;
    Ok(())
}

/// A page of a timeline, newest first, of events older than `before`.
///
/// # Errors
/// From Postgres.
pub async fn list(
    pool: &PgPool,
    instance: Uuid,
    before: Option<i64>,
    limit: i64,
) -> sqlx::Result<Vec<Event>> {
    let rows = sqlx::query!(
        "select id, at, kind, actor, message, task_id from instance_event
         where instance_id = $1 and id < coalesce($2, 9223372036854775807) order by id desc limit $3",
        instance,
        before,
        limit
    )
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Event {
            id: r.id,
            at: r.at.to_jiff(),
            kind: r.kind,
            actor: r.actor,
            message: r.message,
            task_id: r.task_id,
        })
        .collect())
}
