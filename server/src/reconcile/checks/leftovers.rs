//! Whether what removed services left is still there: a list that shows what is gone would be a lie. A few a tick, the longest unseen first.

use super::super::{CheckError, Context};
use crate::{cluster::Releases, db};
use futures::StreamExt;
use std::sync::Arc;

/// Looked for in one tick.
const A_TICK: i64 = 100;
/// At once.
const LOOKUPS: usize = 8;

/// Looks. What cannot be looked for stays as it was last seen.
///
/// # Errors
/// From Postgres, or when another leads.
pub async fn run(cx: &Context, releases: &Arc<dyn Releases>) -> Result<(), CheckError> {
    let kept = db::leftover::list_unseen(&cx.pool, A_TICK).await?;
    if kept.is_empty() {
        return Ok(());
    }
    let looks = kept.into_iter().map(|k| async move {
        let found = releases.find_uid(&k.object).await;
        (k, found)
    });
    let looks: Vec<_> = futures::stream::iter(looks)
        .buffer_unordered(LOOKUPS)
        .collect()
        .await;
    let (mut asked, mut there, mut gone) = (vec![], vec![], vec![]);
    for (kept, found) in looks {
        asked.push(kept.uid.clone());
        match found {
            Ok(Some(uid)) if uid == kept.uid => there.push(kept.uid),
            Ok(_) => gone.push(kept.uid),
            Err(error) => {
                tracing::debug!(event = "leftover.unknown", namespace = %kept.object.namespace, name = %kept.object.name, %error);
            }
        }
    }
    let mut tx = cx.leading.begin(&cx.pool).await?;
    let changed = db::leftover::look(&mut tx, &asked, &there, &gone).await?;
    tx.commit().await?;
    if changed {
        cx.changes.changed("drift", "leftovers");
    }
    Ok(())
}
