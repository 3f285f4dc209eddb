//! Drift's rows: what is not as it was installed, repairs and their brake, orphans.

mod brake;
mod orphan;

pub use brake::{
    Budget, begin_repairs, budget, clear_brake, count_repairs, find_brake, release_brake, set_brake,
};
pub use orphan::{SeenOrphan, find_orphan, keep_orphans, list_orphans, set_orphan};

use super::Timestamptz;
use jiff::Timestamp;
use sqlx::{PgConnection, PgExecutor, PgPool};
use svcforge_app::domain::{DriftItem, EntryKind, InstanceId};
use uuid::Uuid;

/// An instance, as little of it as a comparison needs: there may be 100,000.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its id.
    pub id: Uuid,
    /// Whether it is `ready`: others are only known.
    pub ready: bool,
    /// Release or definition.
    pub kind: EntryKind,
    /// Its release.
    pub release: String,
    /// Where that is.
    pub namespace: String,
    /// The highest revision an attempt of ours recorded.
    pub revision: Option<i32>,
    /// A definition's, as it was applied.
    pub uid: Option<String>,
    /// What was kept of it, when it is not present.
    pub verdict: Option<String>,
}

/// Every instance that is not deleted.
///
/// # Errors
/// From Postgres.
pub async fn list_known(pool: &PgPool) -> sqlx::Result<Vec<Known>> {
    sqlx::query!(
        r#"select i.id as "id!", i.state = 'ready' as "ready!", i.kind = 'helm' as "helm!", i.release_name as "release_name!",
                  i.release_namespace as "release_namespace!", i.release_revision, i.release_uid,
                  d.verdict as "verdict?"
           from instance i left join instance_drift d on d.instance_id = i.id where i.state <> 'deleted'"#
    )
    .fetch_all(pool)
    .await
    .map(|rows| {
        rows.into_iter()
            .map(|r| Known {
                id: r.id,
                ready: r.ready,
                kind: if r.helm { EntryKind::Helm } else { EntryKind::ServiceDefinition },
                release: r.release_name,
                namespace: r.release_namespace,
                revision: r.release_revision,
                uid: r.release_uid,
                verdict: r.verdict,
            })
            .collect()
    })
}

/// Namespaces in which releases are expected.
///
/// # Errors
/// From Postgres.
pub async fn list_namespaces(pool: &PgPool) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar!("select distinct namespace from team order by 1")
        .fetch_all(pool)
        .await
}

/// What a repair needs to know.
#[derive(Clone, Debug)]
pub struct Detail {
    /// Its id.
    pub id: Uuid,
    /// Its team.
    pub team_id: Uuid,
    /// Slug of that.
    pub team: String,
    /// Its name.
    pub name: String,
    /// Its release.
    pub release: String,
    /// Where that is.
    pub namespace: String,
    /// Why it is paused, if it is.
    pub paused: Option<String>,
    /// Whether a provision, deprovision or rollback waits or runs for it, or an upgrade runs.
    pub busy: bool,
    /// Repairs within a day.
    pub repairs: i64,
    /// Whether it is held because of a change already.
    pub held: bool,
}

/// Of these instances, by name: only ready ones.
///
/// # Errors
/// From Postgres.
pub async fn details(db: impl PgExecutor<'_>, ids: &[Uuid]) -> sqlx::Result<Vec<Detail>> {
    sqlx::query_as!(
        Detail,
        r#"select i.id, i.team_id, t.slug as team, i.name, i.release_name as release, i.release_namespace as namespace,
                  z.words as "paused?",
                  exists (select from task k where k.instance_id = i.id
                            and (k.kind in ('provision', 'deprovision', 'rollback') or k.kind = 'upgrade' and k.state = 'running')) as "busy!",
                  case when i.hold_kind = 'not_sticking' then 1000
                       else (select count(*) from drift_repair d where d.instance_id = i.id and d.at > now() - interval '1 day') end as "repairs!",
                  i.hold_kind is not distinct from 'changed' as "held!"
           from instance i join team t on t.id = i.team_id left join lateral pauses_of(i.id, i.team_id, i.service_type) z on true
           where i.id = any($1) and i.state = 'ready' order by i.release_name, i.release_namespace"#,
        ids
    )
    .fetch_all(db)
    .await
}

/// A verdict to keep.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Whose.
    pub id: Uuid,
    /// `gone`, `changed` or `unknown`.
    pub verdict: &'static str,
    /// In words.
    pub detail: String,
    /// What was seen.
    pub revision: Option<i32>,
}

/// Keeps these verdicts and forgets those of `present` and of instances that are not ready. Only what differs is written; returns
/// whose. Locks the lanes.
///
/// # Errors
/// From Postgres.
pub async fn keep_verdicts(
    db: &mut PgConnection,
    verdicts: &[Verdict],
    present: &[Uuid],
) -> sqlx::Result<Vec<Uuid>> {
    let lanes: Vec<Uuid> = verdicts
        .iter()
        .map(|v| v.id)
        .chain(present.iter().copied())
        .collect();
    super::queue::lock_lanes(db, &lanes).await?;
    let mut changed = sqlx::query_scalar!(
        "insert into instance_drift (instance_id, verdict, detail, revision)
         select * from unnest($1::uuid[], $2::text[], $3::text[], $4::int[])
         on conflict (instance_id) do update set verdict = excluded.verdict, detail = excluded.detail, revision = excluded.revision,
            since = case when instance_drift.verdict = excluded.verdict then instance_drift.since else now() end
         where (instance_drift.verdict, instance_drift.detail, instance_drift.revision)
               is distinct from (excluded.verdict, excluded.detail, excluded.revision)
         returning instance_id",
        &verdicts.iter().map(|v| v.id).collect::<Vec<_>>(),
        &verdicts.iter().map(|v| v.verdict.to_owned()).collect::<Vec<_>>(),
        &verdicts.iter().map(|v| v.detail.clone()).collect::<Vec<_>>(),
        &verdicts.iter().map(|v| v.revision).collect::<Vec<_>>() as _
    )
    .fetch_all(&mut *db)
    .await?;
    let forgotten = sqlx::query_scalar!(
        "delete from instance_drift d using instance i
         where i.id = d.instance_id and (d.instance_id = any($1) or i.state <> 'ready') returning d.instance_id",
        present
    )
    .fetch_all(&mut *db)
    .await?;
    changed.extend(forgotten);
    sqlx::query!(
        "update instance set hold_kind = null, hold_reason = null, hold_since = null where id = any($1) and hold_kind = 'changed'",
        present
    )
    .execute(db)
    .await?;
    Ok(changed)
}

/// Holds instances whose release somebody changed. Returns those that were not held before.
///
/// # Errors
/// From Postgres.
pub async fn hold_changed(
    db: &mut PgConnection,
    changed: &[(Uuid, String)],
) -> sqlx::Result<Vec<Uuid>> {
    let ids: Vec<Uuid> = changed.iter().map(|c| c.0).collect();
    let why: Vec<String> = changed.iter().map(|c| c.1.clone()).collect();
    sqlx::query_scalar!(
        "update instance set hold_kind = 'changed', hold_reason = n.why, hold_since = now(), hold_target = null
         from unnest($1::uuid[], $2::text[]) as n (id, why)
         where instance.id = n.id and state = 'ready' and (hold_kind is null or hold_kind = 'not_sticking') returning instance.id",
        &ids,
        &why
    )
    .fetch_all(db)
    .await
}

/// Holds instances whose repairs did not stick: until a person retries or puts them back.
///
/// # Errors
/// From Postgres.
pub async fn hold_not_sticking(
    db: &mut PgConnection,
    ids: &[Uuid],
    reason: &str,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set hold_kind = 'not_sticking', hold_reason = $2, hold_since = now(), hold_target = null
         where id = any($1) and hold_kind is null",
        ids,
        reason
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Forgets repairs that no brake counts any more, orphans that have long been gone, and pauses that are over.
///
/// # Errors
/// From Postgres.
pub async fn delete_old(pool: &PgPool) -> sqlx::Result<()> {
    sqlx::query!("delete from drift_repair where at < now() - interval '2 days'")
        .execute(pool)
        .await?;
    sqlx::query!(
        "delete from orphan where status = 'removed' and status_at < now() - interval '30 days'"
    )
    .execute(pool)
    .await?;
    sqlx::query!("delete from pause where until < now() - interval '1 day'")
        .execute(pool)
        .await?;
    Ok(())
}

/// When the cluster was read, and what went wrong if it could not be.
///
/// # Errors
/// From Postgres.
pub async fn set_sweep(db: &mut PgConnection, error: Option<&str>) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into drift_sweep (at, error) values (case when $1::text is null then now() end, $1)
         on conflict (only_row) do update set error = excluded.error, at = coalesce(excluded.at, drift_sweep.at)",
        error
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Forgets what was seen of a release: it is as it should be again.
///
/// # Errors
/// From Postgres.
pub async fn forget_verdict(db: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!("delete from instance_drift where instance_id = $1", id)
        .execute(db)
        .await?;
    Ok(())
}

/// A person takes over: earlier repairs do not count any more, and the hold ends.
///
/// # Errors
/// From Postgres.
pub async fn forget(db: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!("delete from drift_repair where instance_id = $1", id)
        .execute(&mut *db)
        .await?;
    forget_verdict(db, id).await?;
    end_hold(db, id).await
}

/// What is there is as we installed it: nothing of it is held as changed, or as repaired in vain.
///
/// # Errors
/// From Postgres.
pub async fn end_hold(db: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set hold_kind = null, hold_reason = null, hold_since = null, hold_target = null where id = $1 and hold_kind in ('changed', 'not_sticking')",
        id
    )
    .execute(db)
    .await?;
    Ok(())
}

/// What is kept of one instance.
///
/// # Errors
/// From Postgres.
pub async fn find_verdict(db: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!(
        "select verdict from instance_drift where instance_id = $1 and verdict in ('gone', 'changed')",
        id
    )
    .fetch_optional(db)
    .await
}

/// A person has seen the change and keeps it: it stays held.
///
/// # Errors
/// From Postgres.
pub async fn acknowledge(db: &mut PgConnection, id: Uuid, by: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set hold_kind = 'changed', hold_since = now(), hold_target = null,
                hold_reason = 'changed from outside, and kept by ' || $2::text where id = $1",
        id,
        by
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Takes the revision that was seen for ours.
///
/// # Errors
/// From Postgres.
pub async fn accept(db: &mut PgConnection, id: Uuid) -> sqlx::Result<bool> {
    let accepted = sqlx::query!(
        "update instance set release_revision = d.revision from instance_drift d
         where instance.id = $1 and d.instance_id = $1 and d.verdict = 'changed' and d.revision is not null",
        id
    )
    .execute(db)
    .await?;
    Ok(accepted.rows_affected() == 1)
}

/// Instances that are not as they were installed, with their verdict.
///
/// # Errors
/// From Postgres.
pub async fn list_items(
    db: impl PgExecutor<'_>,
    teams: Option<&[Uuid]>,
    limit: i64,
) -> sqlx::Result<Vec<(String, DriftItem)>> {
    let rows = sqlx::query!(
        "select d.verdict, d.detail, d.since, i.id, i.name, t.slug, i.release_name, i.release_namespace
         from instance_drift d join instance i on i.id = d.instance_id join team t on t.id = i.team_id
         where i.state = 'ready' and ($1::uuid[] is null or i.team_id = any($1)) order by d.since, i.name limit $2",
        teams,
        limit
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| {
            let item = DriftItem {
                instance: InstanceId(r.id),
                name: r.name,
                team: r.slug,
                release: r.release_name,
                namespace: r.release_namespace,
                detail: r.detail,
                since: r.since.to_jiff(),
            };
            (r.verdict, item)
        })
        .collect())
}

/// When the cluster was last read, and what went wrong since.
///
/// # Errors
/// From Postgres.
pub async fn find_sweep(
    db: impl PgExecutor<'_>,
) -> sqlx::Result<(Option<Timestamp>, Option<String>)> {
    let row = sqlx::query!("select at, error from drift_sweep")
        .fetch_optional(db)
        .await?;
    Ok(row.map_or((None, None), |r| (r.at.map(Timestamptz::to_jiff), r.error)))
}
