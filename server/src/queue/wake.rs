//! One listener a process: turns NOTIFY into wake-ups and change messages. Never needed for correctness: workers poll, pages
//! refetch when a stream resets.

use crate::changes::{CHANGED, WORK};
use sqlx::postgres::PgListener;
use std::{sync::Arc, time::Duration};
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

/// What listening yields.
#[derive(Clone, Debug)]
pub struct Wake {
    /// There may be work.
    pub work: Arc<Notify>,
    /// `<topic>:<id>`, or `None` when messages may have been missed.
    pub changed: broadcast::Sender<Option<String>>,
}

impl Default for Wake {
    fn default() -> Self {
        Self {
            work: Arc::default(),
            changed: broadcast::channel(1024).0,
        }
    }
}

/// Listens until told to stop, through every loss of the connection.
pub async fn listen(dsn: String, wake: Wake, stop: CancellationToken) {
    let mut pause = Duration::from_millis(200);
    while !stop.is_cancelled() {
        let end = tokio::select! {
            () = stop.cancelled() => return,
            end = session(&dsn, &wake) => end,
        };
        if let Err(error) = end {
            tracing::debug!(event = "listen.lost", %error);
        }
        // Whatever was told meanwhile was missed.
        let _ = wake.changed.send(None);
        wake.work.notify_one();
        tokio::time::sleep(pause.mul_f64(0.5 + crate::ids::jitter())).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

async fn session(dsn: &str, wake: &Wake) -> sqlx::Result<()> {
    let mut listener = PgListener::connect(dsn).await?;
    listener.listen_all([WORK, CHANGED]).await?;
    let _ = wake.changed.send(None);
    wake.work.notify_one();
    // `try_recv` tells a lost connection by `None`; `recv` would hide it.
    while let Some(message) = listener.try_recv().await? {
        match message.channel() {
            WORK => wake.work.notify_one(),
            _ => {
                let _ = wake.changed.send(Some(message.payload().to_owned()));
            }
        }
    }
    Ok(())
}
