//! Keeps the published catalog in step with its folder. A bad edit keeps the last good one serving and shows its fault.

use super::{load, publish};
use crate::{changes::Changes, db, lease::Leading};
use sqlx::PgPool;
use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often the folder is looked at. By content of the directory entries, not by inotify: ConfigMaps swap symbolic links.
const INTERVAL: Duration = Duration::from_secs(2);

/// Why a catalog was not published.
enum Refused {
    /// The edit is wrong: shown until it is mended.
    Edit(String),
    /// Postgres could not be asked: tried again at the next look.
    Away(String),
}

async fn load_once(pool: &PgPool, path: &Path) -> Result<Option<i64>, Refused> {
    let folder = path.to_path_buf();
    let loaded = tokio::task::spawn_blocking(move || load(&folder)).await;
    let entries = loaded
        .map_err(|e| Refused::Away(e.to_string()))?
        .map_err(|faults| {
            Refused::Edit(
                faults
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join("\n"),
            )
        })?;
    publish(pool, &entries)
        .await
        .map_err(|error| match error.downcast_ref::<sqlx::Error>() {
            Some(_) => Refused::Away(format!("{error:#}")),
            None => Refused::Edit(format!("{error:#}")),
        })
}

/// Loads and publishes what is there now; an edit that is wrong is kept as the fault, and the last good one goes on serving.
///
/// # Errors
/// When Postgres could not be asked.
pub async fn load_now(pool: &PgPool, path: &Path) -> anyhow::Result<()> {
    match load_once(pool, path).await {
        Ok(_) => db::catalog::set_fault(pool, None).await?,
        Err(Refused::Edit(fault)) => {
            tracing::error!(event = "catalog.invalid", error = %fault);
            db::catalog::set_fault(pool, Some(&fault)).await?;
        }
        Err(Refused::Away(error)) => anyhow::bail!("the catalog could not be published: {error}"),
    }
    Ok(())
}

/// Loads now, then whenever the folder has changed and settled, or `reload` is called.
pub async fn watch(
    pool: PgPool,
    path: PathBuf,
    changes: Changes,
    reload: std::sync::Arc<tokio::sync::Notify>,
    mut leading: Option<watch::Receiver<Option<Leading>>>,
    stop: CancellationToken,
) {
    let (mut served, mut seen) = (None, None);
    loop {
        // Two versions side by side in a rolling deploy would publish in turns: only the leader does.
        if let Some(leading) = &mut leading {
            tokio::select! {
                () = stop.cancelled() => return,
                led = leading.wait_for(Option::is_some) => if led.is_err() { return },
            }
        }
        let print = fingerprint(&path);
        // Settled: the same twice in a row; at the start, at once.
        if served.as_ref() != Some(&print) && (served.is_none() || seen.as_ref() == Some(&print)) {
            match load_once(&pool, &path).await {
                Ok(published) => {
                    if let Some(number) = published {
                        tracing::info!(event = "catalog.published", revision = number);
                        changes.changed("catalog", number.to_string());
                    }
                    let _ = db::catalog::set_fault(&pool, None).await;
                    served = Some(print.clone());
                }
                Err(Refused::Edit(fault)) => {
                    tracing::error!(event = "catalog.invalid", error = %fault);
                    if db::catalog::set_fault(&pool, Some(&fault)).await.is_ok() {
                        served = Some(print.clone());
                        changes.changed("catalog", "fault");
                    }
                }
                Err(Refused::Away(error)) => {
                    tracing::warn!(event = "catalog.not_published", %error)
                }
            }
        }
        seen = Some(print);
        tokio::select! {
            () = stop.cancelled() => return,
            () = reload.notified() => served = None,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

/// Names, sizes and times of everything in the folder.
fn fingerprint(path: &Path) -> Vec<(PathBuf, u64, Option<SystemTime>)> {
    let mut print = vec![];
    let mut todo = vec![path.to_path_buf()];
    while let Some(next) = todo.pop() {
        let Ok(meta) = std::fs::metadata(&next) else {
            continue;
        };
        if meta.is_dir() && print.len() < 20_000 {
            todo.extend(
                std::fs::read_dir(&next)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|e| e.path()),
            );
        }
        print.push((next, meta.len(), meta.modified().ok()));
    }
    print.sort();
    print
}
