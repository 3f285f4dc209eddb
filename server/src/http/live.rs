//! What changes, as it changes: a ring of ids and kinds that streams resume from. Never data.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

/// How many changes can be resumed.
const RING: usize = 2048;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Counts from 1 within this process.
    pub n: u64,
    /// `instance`, `task`, `catalog`, `team`; or empty when some were missed.
    pub topic: String,
    /// Which one.
    pub id: String,
}

#[derive(Debug, Default)]
struct Ring {
    next: u64,
    changes: VecDeque<Change>,
}

/// The ring and its listeners.
#[derive(Clone, Debug)]
pub struct Live {
    /// Differs for each process start.
    pub boot: String,
    ring: Arc<Mutex<Ring>>,
    tx: broadcast::Sender<Change>,
}

impl Default for Live {
    fn default() -> Self {
        let boot = crate::ids::new_id().simple().to_string()[20..].to_owned();
        Self {
            boot,
            ring: Arc::default(),
            tx: broadcast::channel(512).0,
        }
    }
}

impl Live {
    /// Feeds the ring from what the listener hears, until told to stop.
    pub async fn feed(
        self,
        mut heard: broadcast::Receiver<Option<String>>,
        stop: CancellationToken,
    ) {
        loop {
            let message = tokio::select! {
                () = stop.cancelled() => return,
                message = heard.recv() => message,
            };
            match message {
                Ok(Some(text)) => {
                    let (topic, id) = text.split_once(':').unwrap_or((&text, ""));
                    self.push(topic, id);
                }
                Ok(None) | Err(broadcast::error::RecvError::Lagged(_)) => self.push("", ""),
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    /// Adds a change and tells the listeners.
    pub fn push(&self, topic: &str, id: &str) {
        let mut ring = self
            .ring
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        ring.next += 1;
        let change = Change {
            n: ring.next,
            topic: topic.into(),
            id: id.into(),
        };
        ring.changes.push_back(change.clone());
        if ring.changes.len() > RING {
            ring.changes.pop_front();
        }
        // Under the lock, so that a resuming listener can neither miss nor repeat one.
        let _ = self.tx.send(change);
    }

    /// The changes after `last` (an id as streams send it), and what comes next. `None` when it cannot be resumed from there.
    pub fn resume(&self, last: Option<&str>) -> (Option<Vec<Change>>, broadcast::Receiver<Change>) {
        let ring = self
            .ring
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let rx = self.tx.subscribe();
        let Some(last) = last else {
            return (Some(vec![]), rx);
        };
        let n = last
            .strip_prefix(&self.boot)
            .and_then(|rest| rest.strip_prefix('-'))
            .and_then(|n| n.parse::<u64>().ok());
        let oldest = ring.changes.front().map_or(ring.next + 1, |c| c.n);
        match n {
            Some(n) if n <= ring.next && n + 1 >= oldest => (
                Some(ring.changes.iter().filter(|c| c.n > n).cloned().collect()),
                rx,
            ),
            _ => (None, rx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_resumes_where_it_was_or_is_told_that_it_cannot() {
        let live = Live::default();
        live.push("instance", "a");
        live.push("task", "b");
        let first = format!("{}-1", live.boot);
        let (missed, _) = live.resume(Some(&first));
        assert_eq!(
            missed
                .expect("resumable")
                .iter()
                .map(|c| c.id.as_str())
                .collect::<Vec<_>>(),
            ["b"]
        );
        assert_eq!(live.resume(None).0, Some(vec![]));
        for unknown in [
            "",
            "x-1",
            "junk",
            &format!("{}-99", live.boot),
            &format!("{}-x", live.boot),
        ] {
            assert_eq!(live.resume(Some(unknown)).0, None, "{unknown:?}");
        }
        for _ in 0..RING {
            live.push("instance", "c");
        }
        assert_eq!(live.resume(Some(&first)).0, None, "fallen out of the ring");
    }
}
