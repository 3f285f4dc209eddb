//! Releases that no instance knows.

use sqlx::{PgConnection, PgExecutor};
use svcforge_app::domain::Orphan;
use uuid::Uuid;

/// An unknown release that was seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeenOrphan {
    /// Its name.
    pub release: String,
    /// Where it is.
    pub namespace: String,
    /// `orphan`, `foreign` or `unmanaged`.
    pub kind: &'static str,
    /// Whose it is, in words.
    pub owner: String,
}

/// Keeps what was seen; marks what was not seen any more as removed. Returns those that a person said to ignore.
///
/// # Errors
/// From Postgres.
pub async fn keep_orphans(
    db: &mut PgConnection,
    seen: &[SeenOrphan],
    whole: bool,
) -> sqlx::Result<Vec<(String, String)>> {
    let ids: Vec<Uuid> = seen.iter().map(|_| crate::ids::new_id()).collect();
    let release: Vec<String> = seen.iter().map(|o| o.release.clone()).collect();
    let namespace: Vec<String> = seen.iter().map(|o| o.namespace.clone()).collect();
    sqlx::query!(
        "insert into orphan (id, kind, release, namespace, owner)
         select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[])
         on conflict (namespace, release) do update set kind = excluded.kind, owner = excluded.owner, last_seen_at = now(),
            status = case when orphan.status in ('removed', 'adopted') then 'open' else orphan.status end,
            status_by = case when orphan.status in ('removed', 'adopted') then null else orphan.status_by end
         where orphan.last_seen_at < now() - interval '1 minute' or orphan.status in ('removed', 'adopted')
            or (orphan.kind, orphan.owner) is distinct from (excluded.kind, excluded.owner)",
        &ids,
        &seen.iter().map(|o| o.kind.to_owned()).collect::<Vec<_>>(),
        &release,
        &namespace,
        &seen.iter().map(|o| o.owner.clone()).collect::<Vec<_>>()
    )
    .execute(&mut *db)
    .await?;
    if whole {
        sqlx::query!(
            "update orphan set status = 'removed', status_at = now(), status_by = 'seen to be gone'
             where status in ('open', 'ignored') and not exists (
                select from unnest($1::text[], $2::text[]) as s (release, namespace)
                where s.release = orphan.release and s.namespace = orphan.namespace)",
            &release,
            &namespace
        )
        .execute(&mut *db)
        .await?;
    }
    let ignored = sqlx::query!("select release, namespace from orphan where status = 'ignored'")
        .fetch_all(db)
        .await?;
    Ok(ignored
        .into_iter()
        .map(|r| (r.release, r.namespace))
        .collect())
}

/// Orphans that are there, by name; with their kind.
///
/// # Errors
/// From Postgres.
pub async fn list_orphans(
    db: impl PgExecutor<'_>,
    limit: i64,
) -> sqlx::Result<Vec<(String, Orphan)>> {
    let rows = sqlx::query!(
        "select id, kind, release, namespace, owner, first_seen_at, last_seen_at, status, status_by from orphan
         where status in ('open', 'ignored') order by release, namespace limit $1",
        limit
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| {
            let orphan = Orphan {
                id: r.id,
                release: r.release,
                namespace: r.namespace,
                owner: r.owner,
                first_seen_at: r.first_seen_at.to_jiff(),
                last_seen_at: r.last_seen_at.to_jiff(),
                status: r.status,
                status_by: r.status_by,
            };
            (r.kind, orphan)
        })
        .collect())
}

/// One orphan: kind, release, namespace, status.
///
/// # Errors
/// From Postgres.
pub async fn find_orphan(
    db: &mut PgConnection,
    id: Uuid,
) -> sqlx::Result<Option<(String, String, String, String)>> {
    let row = sqlx::query!(
        "select kind, release, namespace, status from orphan where id = $1 for update",
        id
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|r| (r.kind, r.release, r.namespace, r.status)))
}

/// What a person says of an orphan.
///
/// # Errors
/// From Postgres.
pub async fn set_orphan(
    db: &mut PgConnection,
    id: Uuid,
    status: &str,
    by: &str,
    reason: &str,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update orphan set status = $2, status_by = $3, status_at = now(), status_reason = $4 where id = $1",
        id,
        status,
        by,
        reason
    )
    .execute(db)
    .await?;
    Ok(())
}
