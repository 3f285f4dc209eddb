//! Which installation this database belongs to, and which cluster it is bound to.

use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// The installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Labels everything that is ours in a cluster.
    pub id: Uuid,
    /// Differs after a restore.
    pub incarnation: Uuid,
}

/// Reads the installation; makes it in a new database.
///
/// # Errors
/// From Postgres.
pub async fn load(pool: &PgPool) -> sqlx::Result<Installation> {
    sqlx::query!(
        "insert into installation (id, incarnation) values ($1, $2) on conflict do nothing",
        crate::ids::new_id(),
        crate::ids::new_id()
    )
    .execute(pool)
    .await?;
    sqlx::query_as!(Installation, "select id, incarnation from installation")
        .fetch_one(pool)
        .await
}

/// Binds the database to a cluster if it is bound to none; returns the one it is bound to.
///
/// # Errors
/// From Postgres.
pub async fn bind_cluster(db: &mut PgConnection, uid: &str) -> sqlx::Result<String> {
    sqlx::query_scalar!(
        r#"update installation set cluster_uid = coalesce(cluster_uid, $1) returning cluster_uid as "uid!""#,
        uid
    )
    .fetch_one(db)
    .await
}
