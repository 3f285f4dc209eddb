//! A checked catalog becomes the newest revision in Postgres.

use super::Packed;
use crate::db;
use sha2::{Digest, Sha256};
use sqlx::PgPool;

/// Publishes the catalog unless the newest revision is the same. Returns the new revision's number.
///
/// # Errors
/// When content changed under an unchanged version, naming type and version; or from Postgres.
pub async fn publish(pool: &PgPool, entries: &[Packed]) -> anyhow::Result<Option<i64>> {
    let mut sha = Sha256::new();
    for packed in entries {
        sha.update(&packed.digest);
    }
    let digest = sha.finalize().to_vec();
    let mut tx = pool.begin().await?;
    if db::catalog::lock_newest(&mut tx).await?.as_deref() == Some(&digest[..]) {
        return Ok(None);
    }
    let mut items = vec![];
    for packed in entries {
        let entry = &packed.entry;
        let id = db::catalog::ensure_revision(&mut tx, packed).await?.map_err(|()| {
            anyhow::anyhow!(
                "{} {} has changed although its chart_version has not: raise chart_version (a published revision never changes)",
                entry.service_type,
                entry.chart_version
            )
        })?;
        items.push((entry.service_type.clone(), id));
    }
    let number = db::catalog::publish(&mut tx, &digest, &items).await?;
    tx.commit().await?;
    Ok(Some(number))
}
