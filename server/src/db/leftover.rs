//! What removed services left in the cluster because their entries keep it.

use super::{Timestamptz, observed::ObjectRef};
use sqlx::{PgConnection, PgExecutor};
use svcforge_app::domain::{InstanceId, Leftover};
use uuid::Uuid;

/// An object that stays, or is looked for.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The object.
    pub object: ObjectRef,
    /// The very one.
    pub uid: String,
}

/// Records what an instance will leave; for so many days, if its entry says so.
///
/// # Errors
/// From Postgres.
pub async fn keep(
    db: &mut PgConnection,
    instance: Uuid,
    kept: &[Kept],
    days: Option<u32>,
) -> sqlx::Result<()> {
    let text = |f: fn(&Kept) -> &String| kept.iter().map(|k| f(k).clone()).collect::<Vec<_>>();
    sqlx::query!(
        "insert into leftover (id, instance_id, kind, namespace, name, uid, keep_until)
         select distinct on (uid) id, $2, kind, namespace, name, uid, now() + make_interval(days => $7::int)
         from unnest($1::uuid[], $3::text[], $4::text[], $5::text[], $6::text[]) as k (id, kind, namespace, name, uid)
         on conflict (uid) do update set instance_id = excluded.instance_id, kept_at = now(), keep_until = coalesce(excluded.keep_until, leftover.keep_until), gone_at = null",
        &kept.iter().map(|_| crate::ids::new_id()).collect::<Vec<_>>(),
        instance,
        &text(|k| &k.object.kind),
        &text(|k| &k.object.namespace),
        &text(|k| &k.object.name),
        &text(|k| &k.uid),
        days.map(|d| i32::try_from(d).unwrap_or(i32::MAX)) as Option<i32>
    )
    .execute(db)
    .await?;
    Ok(())
}

/// What was recorded for an instance.
///
/// # Errors
/// From Postgres.
pub async fn list_of(db: impl PgExecutor<'_>, instance: Uuid) -> sqlx::Result<Vec<ObjectRef>> {
    sqlx::query_as!(
        ObjectRef,
        "select kind, namespace, name from leftover where instance_id = $1 and gone_at is null order by id",
        instance
    )
    .fetch_all(db)
    .await
}

/// Those that nobody has looked for the longest.
///
/// # Errors
/// From Postgres.
pub async fn list_unseen(db: impl PgExecutor<'_>, limit: i64) -> sqlx::Result<Vec<Kept>> {
    let rows = sqlx::query!(
        "select l.kind, namespace, l.name, uid from leftover l join instance i on i.id = l.instance_id
         where gone_at is null and i.state = 'deleted' order by looked_at limit $1",
        limit
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Kept {
            object: ObjectRef {
                kind: r.kind,
                namespace: r.namespace,
                name: r.name,
            },
            uid: r.uid,
        })
        .collect())
}

/// Keeps what a look has shown: these uids are there, those are not any more, of the rest nobody knows. Whether any is gone that was not.
///
/// # Errors
/// From Postgres.
pub async fn look(
    db: &mut PgConnection,
    asked: &[String],
    there: &[String],
    gone: &[String],
) -> sqlx::Result<bool> {
    sqlx::query!(
        "update leftover set looked_at = now(), last_seen_at = case when uid = any($2) then now() else last_seen_at end where uid = any($1)",
        asked,
        there
    )
    .execute(&mut *db)
    .await?;
    let gone = sqlx::query!(
        "update leftover set gone_at = now() where uid = any($1) and gone_at is null",
        gone
    )
    .execute(db)
    .await?;
    Ok(gone.rows_affected() > 0)
}

/// Those that are there, of these teams (of all when none), oldest first.
///
/// # Errors
/// From Postgres.
pub async fn list(
    db: impl PgExecutor<'_>,
    teams: Option<&[Uuid]>,
    limit: i64,
) -> sqlx::Result<Vec<Leftover>> {
    let rows = sqlx::query!(
        "select l.instance_id, i.name as instance, t.slug, l.kind, l.namespace, l.name, l.kept_at, l.keep_until, l.last_seen_at
         from leftover l join instance i on i.id = l.instance_id join team t on t.id = i.team_id
         where l.gone_at is null and i.state = 'deleted' and ($1::uuid[] is null or i.team_id = any($1)) order by l.kept_at, l.name limit $2",
        teams,
        limit
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Leftover {
            instance: InstanceId(r.instance_id),
            service: r.instance,
            team: r.slug,
            kind: r.kind,
            namespace: r.namespace,
            name: r.name,
            kept_at: r.kept_at.to_jiff(),
            keep_until: r.keep_until.map(Timestamptz::to_jiff),
            last_seen_at: r.last_seen_at.to_jiff(),
        })
        .collect())
}
