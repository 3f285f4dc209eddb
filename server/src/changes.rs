//! What changed, told to every process: after the commit, the first at once and what follows gathered, never in the way of the change.

use crate::db;
use sqlx::PgPool;
use std::{collections::BTreeSet, time::Duration};
use tokio::sync::mpsc;

/// Channel of changes that people look at.
pub const CHANGED: &str = "svcforge_changed";
/// Channel that wakes workers.
pub const WORK: &str = "svcforge_work";

/// How long what follows is gathered: under load one statement tells of many, and what comes alone is told at once.
const GATHER: Duration = Duration::from_millis(5);

/// Tells changes. Cheap to clone; telling never blocks and never fails (workers poll; a page that missed something is told `reset` when the listener is back).
#[derive(Clone, Debug)]
pub struct Changes {
    tx: mpsc::UnboundedSender<(&'static str, String)>,
}

impl Changes {
    /// Starts the task that tells. It ends when the last handle is dropped.
    pub fn start(pool: PgPool) -> Self {
        let (tx, mut rx) = mpsc::unbounded_channel::<(&'static str, String)>();
        tokio::spawn(async move {
            while let Some(first) = rx.recv().await {
                let mut gathered = BTreeSet::from([first]);
                while let Ok(more) = rx.try_recv() {
                    gathered.insert(more);
                }
                for channel in [WORK, CHANGED] {
                    let payloads: Vec<String> = gathered
                        .iter()
                        .filter(|(c, _)| *c == channel)
                        .map(|(_, p)| p.clone())
                        .collect();
                    if payloads.is_empty() {
                        continue;
                    }
                    if let Err(error) = db::queue::notify(&pool, channel, &payloads).await {
                        tracing::debug!(event = "changes.lost", %error);
                    }
                }
                tokio::time::sleep(GATHER).await;
            }
        });
        Self { tx }
    }

    /// Something people look at has changed: a topic and which one.
    pub fn changed(&self, topic: &str, id: impl ToString) {
        let _ = self
            .tx
            .send((CHANGED, format!("{topic}:{}", id.to_string())));
    }

    /// There is work for a worker.
    pub fn work(&self) {
        let _ = self.tx.send((WORK, "task".into()));
    }
}
