//! What has reached its end.

use super::Timestamptz;
use sqlx::{PgConnection, PgExecutor};
use uuid::Uuid;

/// An instance to remove.
#[derive(Clone, Debug)]
pub struct Due {
    /// Its id.
    pub id: Uuid,
    /// Its team.
    pub team_id: Uuid,
    /// Slug of that.
    pub team: String,
    /// Its state.
    pub state: String,
    /// When it expires; none for one that was left `deleting`.
    pub expires_at: Option<Timestamptz>,
    /// Whether it has expired.
    pub expired: bool,
    /// Why it is paused, if it is.
    pub paused: Option<String>,
    /// How many of its removals have failed for good.
    pub failures: i64,
    /// How long a removal waits, as its entry says.
    pub grace: Option<String>,
}

/// Instances at or past their end, or left `deleting`, for which no removal waits or runs; the longest due first.
///
/// # Errors
/// From Postgres.
pub async fn list_due(db: impl PgExecutor<'_>, limit: i64) -> sqlx::Result<Vec<Due>> {
    sqlx::query_as!(
        Due,
        r#"select i.id, i.team_id, t.slug as team, i.state, i.expires_at, coalesce(i.expires_at <= now(), false) as "expired!",
                  z.words as "paused?",
                  case when i.state = 'deleting' then
                    (select count(*) from task_history h where h.instance_id = i.id and h.kind = 'deprovision' and h.outcome = 'failed')
                    else 0 end as "failures!",
                  r.spec ->> 'delete_grace' as grace
           from instance i join team t on t.id = i.team_id join entry_revision r on r.id = i.entry_revision_id
                left join lateral pauses_of(i.id, i.team_id, i.service_type) z on true
           where i.state <> 'deleted' and (i.expires_at <= now() or i.state = 'deleting')
             and not exists (select from task k where k.instance_id = i.id and k.kind = 'deprovision')
           order by i.expires_at nulls first, i.id limit $1"#,
        limit
    )
    .fetch_all(db)
    .await
}

/// Moves those to `deleting` that are still due. The lanes must be locked. Returns those that are `deleting` now.
///
/// # Errors
/// From Postgres.
pub async fn begin(db: &mut PgConnection, ids: &[Uuid]) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        "with still as (
            select i.id, i.state from instance i
            where i.id = any($1) and i.state <> 'deleted' and (i.expires_at <= now() or i.state = 'deleting')
              and not exists (select from task k where k.instance_id = i.id and k.kind = 'deprovision')),
         moved as (update instance set state = 'deleting' from still where instance.id = still.id and still.state <> 'deleting')
         select id from still",
        ids
    )
    .fetch_all(db)
    .await
}
