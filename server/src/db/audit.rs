//! The record of who changed what. Written in the transaction of the change.

use crate::authz::Actor;
use serde_json::Value;
use sqlx::PgConnection;

/// Writes an entry.
///
/// # Errors
/// From Postgres.
pub async fn insert(
    db: &mut PgConnection,
    actor: &Actor,
    action: &str,
    target: (&str, &str),
    detail: &Value,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into audit (actor, actor_id, via, action, target_kind, target_id, detail, request_id)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        actor.name,
        actor.user.0,
        actor.via.as_str(),
        action,
        target.0,
        target.1,
        detail,
        crate::http::request_id::current(),
    )
    .execute(db)
    .await?;
    Ok(())
}
