//! Users, their tokens and one-time links.

use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// A user who may act.
#[derive(Clone, Debug)]
pub struct UserRow {
    /// Their id.
    pub id: Uuid,
    /// Their name.
    pub name: String,
    /// Whether a platform admin.
    pub is_admin: bool,
}

/// The user of that id, unless disabled.
///
/// # Errors
/// From Postgres.
pub async fn find_enabled(pool: &PgPool, id: Uuid) -> sqlx::Result<Option<UserRow>> {
    sqlx::query_as!(
        UserRow,
        "select id, name, is_admin from app_user where id = $1 and disabled_at is null",
        id
    )
    .fetch_optional(pool)
    .await
}

/// The user of that name; made if there is none.
///
/// # Errors
/// From Postgres.
pub async fn ensure(db: &mut PgConnection, name: &str, is_admin: bool) -> sqlx::Result<Uuid> {
    sqlx::query!(
        "insert into app_user (id, name, is_admin) values ($1, $2, $3) on conflict (name) do nothing",
        crate::ids::new_id(),
        name,
        is_admin
    )
    .execute(&mut *db)
    .await?;
    sqlx::query_scalar!("select id from app_user where name = $1", name)
        .fetch_one(db)
        .await
}

/// Makes a user an admin.
///
/// # Errors
/// From Postgres.
pub async fn make_admin(db: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!("update app_user set is_admin = true where id = $1", id)
        .execute(db)
        .await?;
    Ok(())
}

/// Disables a user, which ends their sessions and tokens at once; or lets them in again. False when there is no such user.
///
/// # Errors
/// From Postgres.
pub async fn set_disabled(db: &mut PgConnection, name: &str, disabled: bool) -> sqlx::Result<bool> {
    let found = sqlx::query!(
        "update app_user set disabled_at = case when $2 then coalesce(disabled_at, now()) end where name = $1",
        name,
        disabled
    )
    .execute(db)
    .await?;
    Ok(found.rows_affected() == 1)
}

/// Replaces the token of that label by a new one.
///
/// # Errors
/// From Postgres.
pub async fn replace_token(
    db: &mut PgConnection,
    user: Uuid,
    label: &str,
    id: &str,
    hash: &[u8],
) -> sqlx::Result<()> {
    sqlx::query!("update api_token set revoked_at = now() where user_id = $1 and label = $2 and revoked_at is null", user, label)
        .execute(&mut *db)
        .await?;
    sqlx::query!(
        "insert into api_token (id, user_id, secret_hash, label) values ($1, $2, $3, $4)",
        id,
        user,
        hash,
        label
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Whose token that is, if it may still be used.
///
/// # Errors
/// From Postgres.
pub async fn find_by_token(pool: &PgPool, id: &str, hash: &[u8]) -> sqlx::Result<Option<UserRow>> {
    sqlx::query_as!(
        UserRow,
        "select u.id, u.name, u.is_admin from api_token t join app_user u on u.id = t.user_id
         where t.id = $1 and t.secret_hash = $2 and t.revoked_at is null and (t.expires_at is null or t.expires_at > now())
           and u.disabled_at is null",
        id,
        hash
    )
    .fetch_optional(pool)
    .await
}

/// Keeps a one-time link for that many seconds.
///
/// # Errors
/// From Postgres.
pub async fn insert_link(
    db: &mut PgConnection,
    hash: &[u8],
    user: Uuid,
    seconds: f64,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into signin_link (secret_hash, user_id, expires_at) values ($1, $2, now() + make_interval(secs => $3))",
        hash,
        user,
        seconds
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Uses a link: whose it is, the first time only.
///
/// # Errors
/// From Postgres.
pub async fn use_link(pool: &PgPool, hash: &[u8]) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "update signin_link set used_at = now() where secret_hash = $1 and used_at is null and expires_at > now() returning user_id",
        hash
    )
    .fetch_optional(pool)
    .await
}

/// Removes links that have been used or have expired.
///
/// # Errors
/// From Postgres.
pub async fn delete_dead_links(pool: &PgPool) -> sqlx::Result<()> {
    sqlx::query!("delete from signin_link where used_at is not null or expires_at < now()")
        .execute(pool)
        .await?;
    Ok(())
}
