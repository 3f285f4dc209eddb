//! Answers reveals: the worker's half of the sealed way to secrets.

use super::{Tasks, load_job};
use crate::{db, provision::connection, queue::Wake};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Answers until told to stop. Woken like a worker, and looks by itself every two seconds.
pub async fn answer_reveals(tasks: Arc<Tasks>, wake: Wake, stop: CancellationToken) {
    let mut changed = wake.changed.subscribe();
    loop {
        if let Err(error) = answer_open(&tasks).await {
            tracing::warn!(event = "reveal.failed", %error);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            _ = changed.recv() => {}
            () = tokio::time::sleep(Duration::from_secs(2)) => {}
        }
    }
}

async fn answer_open(tasks: &Tasks) -> sqlx::Result<()> {
    for asked in db::reveal::list_open(&tasks.pool).await? {
        match seal(tasks, asked.instance_id, &asked.public_key).await {
            Ok(sealed) => db::reveal::answer(&tasks.pool, asked.id, Ok(&sealed)).await?,
            Err(why) => db::reveal::answer(&tasks.pool, asked.id, Err(&why)).await?,
        }
    }
    Ok(())
}

async fn seal(tasks: &Tasks, instance: uuid::Uuid, public_key: &[u8]) -> Result<Vec<u8>, String> {
    let key: [u8; 32] = public_key
        .try_into()
        .map_err(|_| "the key is not 32 bytes")?;
    let job = load_job(&tasks.pool, instance, None)
        .await
        .map_err(|e| e.to_string())?;
    let credentials = tasks
        .provisioner
        .credentials(&job)
        .await
        .map_err(|e| e.to_string())?;
    let fields =
        connection::revealed(&job.entry, &job.work, &credentials).map_err(|e| format!("{e:#}"))?;
    let plain = serde_json::to_vec(&fields).map_err(|e| e.to_string())?;
    crypto_box::PublicKey::from(key)
        .seal(&mut crypto_box::aead::OsRng, &plain)
        .map_err(|_| "cannot be sealed".into())
}
