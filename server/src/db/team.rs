//! Teams and who is in them.

use sqlx::{PgConnection, PgPool};
use svcforge_app::domain::{Role, Team, TeamId};
use uuid::Uuid;

/// A team's row.
#[derive(Clone, Debug)]
pub struct TeamRow {
    /// Its id.
    pub id: Uuid,
    /// Short name.
    pub slug: String,
    /// Name for people.
    pub title: String,
    /// Where its releases live.
    pub namespace: String,
}

/// The team of that slug.
///
/// # Errors
/// From Postgres.
pub async fn find(pool: &PgPool, slug: &str) -> sqlx::Result<Option<TeamRow>> {
    sqlx::query_as!(
        TeamRow,
        "select id, slug, title, namespace from team where slug = $1",
        slug
    )
    .fetch_optional(pool)
    .await
}

/// Every team, for an admin.
///
/// # Errors
/// From Postgres.
pub async fn list_all(pool: &PgPool) -> sqlx::Result<Vec<TeamRow>> {
    sqlx::query_as!(
        TeamRow,
        "select id, slug, title, namespace from team order by slug"
    )
    .fetch_all(pool)
    .await
}

/// Adds a team. The unique constraints are `team_slug_key` and `team_namespace_key`.
///
/// # Errors
/// From Postgres.
pub async fn insert(
    db: &mut PgConnection,
    id: Uuid,
    slug: &str,
    title: &str,
    namespace: &str,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into team (id, slug, title, namespace) values ($1, $2, $3, $4)",
        id,
        slug,
        title,
        namespace
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Gives a user a role in a team.
///
/// # Errors
/// From Postgres.
pub async fn set_role(
    db: &mut PgConnection,
    team: Uuid,
    user: Uuid,
    role: Role,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into membership (team_id, user_id, role) values ($1, $2, $3)
         on conflict (team_id, user_id) do update set role = excluded.role",
        team,
        user,
        role.as_str()
    )
    .execute(db)
    .await?;
    Ok(())
}

/// The teams of a user, with their role.
///
/// # Errors
/// From Postgres.
pub async fn list_of(pool: &PgPool, user: Uuid) -> sqlx::Result<Vec<Team>> {
    let rows = sqlx::query!(
        "select t.id, t.slug, t.title, m.role from membership m join team t on t.id = m.team_id where m.user_id = $1 order by t.slug",
        user
    )
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Team {
            id: TeamId(r.id),
            slug: r.slug,
            title: r.title,
            role: Role::parse(&r.role),
        })
        .collect())
}
