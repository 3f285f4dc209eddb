//! Pauses.

use super::Timestamptz;
use jiff::Timestamp;
use sqlx::{PgConnection, PgExecutor};
use svcforge_app::domain::Pause;
use uuid::Uuid;

/// What a pause speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// One instance.
    Instance(Uuid),
    /// A team's.
    Team(Uuid),
    /// A type's.
    Type(String),
    /// All.
    All,
}

impl Of {
    fn parts(&self) -> (&'static str, Option<Uuid>, Option<Uuid>, Option<&str>) {
        match self {
            Self::Instance(id) => ("instance", Some(*id), None, None),
            Self::Team(id) => ("team", None, Some(*id), None),
            Self::Type(name) => ("type", None, None, Some(name)),
            Self::All => ("all", None, None, None),
        }
    }
}

/// Pauses; a pause that is there already is replaced.
///
/// # Errors
/// From Postgres.
pub async fn upsert(
    db: &mut PgConnection,
    of: &Of,
    reason: &str,
    by: &str,
    until: Option<Timestamp>,
) -> sqlx::Result<()> {
    end(db, of).await?;
    let (scope, instance, team, service_type) = of.parts();
    sqlx::query!(
        "insert into pause (id, scope, instance_id, team_id, service_type, reason, paused_by, until) values ($1, $2, $3, $4, $5, $6, $7, $8)",
        crate::ids::new_id(),
        scope,
        instance,
        team,
        service_type,
        reason,
        by,
        until.map(Timestamptz::from) as Option<Timestamptz>
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Ends a pause. False when there is none.
///
/// # Errors
/// From Postgres.
pub async fn end(db: &mut PgConnection, of: &Of) -> sqlx::Result<bool> {
    let (scope, instance, team, service_type) = of.parts();
    let ended = sqlx::query!(
        "delete from pause where scope = $1 and instance_id is not distinct from $2 and team_id is not distinct from $3
           and service_type is not distinct from $4",
        scope,
        instance,
        team,
        service_type
    )
    .execute(db)
    .await?;
    Ok(ended.rows_affected() > 0)
}

/// Pauses in force: of instances of these teams (all when none), and every wider one.
///
/// # Errors
/// From Postgres.
pub async fn list(
    db: impl PgExecutor<'_>,
    teams: Option<&[Uuid]>,
    instance: Option<Uuid>,
) -> sqlx::Result<Vec<Pause>> {
    let rows = sqlx::query!(
        r#"select p.scope, coalesce(p.instance_id::text, t.slug, p.service_type, '') as "of!", p.reason, p.paused_by, p.since, p.until
           from pause p left join team t on t.id = p.team_id left join instance i on i.id = p.instance_id
           where (p.until is null or p.until > now())
             and ($1::uuid[] is null or coalesce(p.team_id, i.team_id) is null or coalesce(p.team_id, i.team_id) = any($1))
             and ($2::uuid is null or p.instance_id = $2)
           order by p.since"#,
        teams,
        instance
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Pause {
            scope: r.scope,
            of: r.of,
            reason: r.reason,
            by: r.paused_by,
            since: r.since.to_jiff(),
            until: r.until.map(Timestamptz::to_jiff),
        })
        .collect())
}
