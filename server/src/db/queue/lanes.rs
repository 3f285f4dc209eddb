//! Lanes: one an instance, one head each.

use sqlx::PgConnection;
use uuid::Uuid;

/// Locks the lanes of these instances, in an order that cannot deadlock. Always its own statement, always first.
///
/// # Errors
/// From Postgres.
pub async fn lock_lanes(db: &mut PgConnection, instances: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!(
        "select id from instance where id = any($1) order by id for no key update",
        instances
    )
    .fetch_all(db)
    .await?;
    Ok(())
}

/// Demotes heads that something better overtakes, then gives every lane without a head its best due task. The lanes must be locked.
pub(super) async fn settle(db: &mut PgConnection, instances: &[Uuid]) -> sqlx::Result<u64> {
    demote(db, instances).await?;
    promote(db, instances).await
}

pub(super) async fn demote(db: &mut PgConnection, instances: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!(
        "update task h set state = 'blocked'
         where h.instance_id = any($1) and h.state = 'ready'
           and exists (select from task w where w.instance_id = h.instance_id and w.state = 'blocked' and w.priority < h.priority)",
        instances
    )
    .execute(db)
    .await?;
    Ok(())
}

pub(super) async fn promote(db: &mut PgConnection, instances: &[Uuid]) -> sqlx::Result<u64> {
    // Rank: the share its team has already (counted to 200), so that one team's many never stand before another's first.
    let promoted = sqlx::query!(
        "with head as (
            select distinct on (t.instance_id) t.id, t.team_id from task t
            where t.instance_id = any($1) and t.state = 'blocked'
              and not exists (select from task r where r.instance_id = t.instance_id and r.state in ('ready', 'running'))
            order by t.instance_id, t.priority, t.run_after, t.id),
         share as (
            select team_id, (select count(*) from (select from task o where o.team_id = h.team_id and o.state in ('ready', 'running') limit 200) x) as held
            from (select distinct team_id from head) h),
         ranked as (
            select head.id, coalesce(share.held, 0) + row_number() over (partition by head.team_id order by head.id) - 1 as rank
            from head left join share using (team_id))
         update task set state = 'ready', rank = ranked.rank::int from ranked where task.id = ranked.id",
        instances
    )
    .execute(db)
    .await?;
    Ok(promoted.rows_affected())
}
