//! The published catalog and its entry revisions.

use crate::catalog::{Entry, Packed};
use sqlx::{PgConnection, PgExecutor, PgPool};
use uuid::Uuid;

/// An entry revision: what an instance points to.
#[derive(Clone, Debug)]
pub struct Revision {
    /// Its id.
    pub id: Uuid,
    /// The entry as it was written.
    pub entry: Entry,
}

fn revision(id: Uuid, spec: serde_json::Value) -> sqlx::Result<Revision> {
    let entry = serde_json::from_value(spec).map_err(|e| sqlx::Error::Decode(e.into()))?;
    Ok(Revision { id, entry })
}

/// The current catalog, by title.
///
/// # Errors
/// From Postgres.
pub async fn list_current(pool: &PgPool) -> sqlx::Result<Vec<Revision>> {
    let rows = sqlx::query!(
        "select r.id, r.spec from catalog_item i join entry_revision r on r.id = i.entry_revision_id
         where i.catalog_revision_id = (select max(id) from catalog_revision) order by r.spec->>'title'"
    )
    .fetch_all(pool)
    .await?;
    rows.into_iter().map(|r| revision(r.id, r.spec)).collect()
}

/// The current revision of one type.
///
/// # Errors
/// From Postgres.
pub async fn find_current(
    db: impl PgExecutor<'_>,
    service_type: &str,
) -> sqlx::Result<Option<Revision>> {
    let row = sqlx::query!(
        "select r.id, r.spec from catalog_item i join entry_revision r on r.id = i.entry_revision_id
         where i.catalog_revision_id = (select max(id) from catalog_revision) and i.service_type = $1",
        service_type
    )
    .fetch_optional(db)
    .await?;
    row.map(|r| revision(r.id, r.spec)).transpose()
}

/// A revision by its id, with its chart.
///
/// # Errors
/// From Postgres.
pub async fn load(db: impl PgExecutor<'_>, id: Uuid) -> sqlx::Result<(Revision, Option<Vec<u8>>)> {
    let row = sqlx::query!(
        "select id, spec, chart from entry_revision where id = $1",
        id
    )
    .fetch_one(db)
    .await?;
    Ok((revision(row.id, row.spec)?, row.chart))
}

/// Whether a catalog was ever published.
///
/// # Errors
/// From Postgres.
pub async fn is_published(pool: &PgPool) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select exists (select from catalog_revision) as "is!""#)
        .fetch_one(pool)
        .await
}

/// The digest of the newest catalog; locks publication for the transaction, so that two processes do not publish at once.
///
/// # Errors
/// From Postgres.
pub async fn lock_newest(db: &mut PgConnection) -> sqlx::Result<Option<Vec<u8>>> {
    sqlx::query!("lock table catalog_revision in share row exclusive mode")
        .execute(&mut *db)
        .await?;
    sqlx::query_scalar!("select digest from catalog_revision order by id desc limit 1")
        .fetch_optional(db)
        .await
}

/// The id of this entry's revision, made if new. `Err` holds the digest clash: same type and version, other content.
///
/// # Errors
/// From Postgres.
pub async fn ensure_revision(
    db: &mut PgConnection,
    packed: &Packed,
) -> sqlx::Result<Result<Uuid, ()>> {
    let spec = serde_json::to_value(&packed.entry).map_err(|e| sqlx::Error::Encode(e.into()))?;
    sqlx::query!(
        "insert into entry_revision (id, service_type, kind, chart_version, digest, spec, chart) values ($1, $2, $3, $4, $5, $6, $7)
         on conflict (service_type, chart_version) do nothing",
        crate::ids::new_id(),
        packed.entry.service_type,
        packed.entry.kind.as_str(),
        packed.entry.chart_version,
        packed.digest,
        spec,
        packed.chart.as_deref()
    )
    .execute(&mut *db)
    .await?;
    let row = sqlx::query!(
        "select id, digest from entry_revision where service_type = $1 and chart_version = $2",
        packed.entry.service_type,
        packed.entry.chart_version
    )
    .fetch_one(db)
    .await?;
    Ok(if row.digest == packed.digest {
        Ok(row.id)
    } else {
        Err(())
    })
}

/// Publishes these revisions as the catalog.
///
/// # Errors
/// From Postgres.
pub async fn publish(
    db: &mut PgConnection,
    digest: &[u8],
    items: &[(String, Uuid)],
) -> sqlx::Result<i64> {
    let number = sqlx::query_scalar!(
        "insert into catalog_revision (digest) values ($1) returning id",
        digest
    )
    .fetch_one(&mut *db)
    .await?;
    for (service_type, id) in items {
        sqlx::query!(
            "insert into catalog_item (catalog_revision_id, service_type, entry_revision_id) values ($1, $2, $3)",
            number,
            service_type,
            id
        )
        .execute(&mut *db)
        .await?;
        sqlx::query!(
            "insert into rollout (service_type) values ($1) on conflict do nothing",
            service_type
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(number)
}

/// Keeps or clears what is wrong with the newest edit.
///
/// # Errors
/// From Postgres.
pub async fn set_fault(pool: &PgPool, message: Option<&str>) -> sqlx::Result<()> {
    match message {
        Some(message) => {
            sqlx::query!(
                "insert into catalog_fault (message) values ($1)
                 on conflict (only_row) do update set message = excluded.message, since = now() where catalog_fault.message <> excluded.message",
                message
            )
            .execute(pool)
            .await?
        }
        None => sqlx::query!("delete from catalog_fault").execute(pool).await?,
    };
    Ok(())
}

/// What is wrong with the newest edit.
///
/// # Errors
/// From Postgres.
pub async fn fault(pool: &PgPool) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!("select message from catalog_fault")
        .fetch_optional(pool)
        .await
}
