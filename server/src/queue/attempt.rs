//! One attempt: what a handler holds while it works.

use crate::{
    changes::Changes,
    db::{
        self, observed, queue as db_queue,
        queue::Claimed,
        task::{self, NewLine},
    },
};
use sqlx::PgPool;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};
use svcforge_app::domain::{Readiness, StepState};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Duration, Instant},
};

/// Why an attempt must stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Somebody asked, with a reason.
    Asked(String),
    /// The lease is lost: nothing may be written any more.
    LeaseLost,
    /// svcforge stops and the drain limit is over.
    Shutdown,
    /// It has run for too long.
    Deadline,
}

/// Why an attempt cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Its lease is lost: somebody else may hold the task.
    #[error("the lease is lost")]
    Lease,
    /// Postgres said so.
    #[error("database: {0}")]
    Db(#[from] sqlx::Error),
}

/// Lines are written together after this long.
const FLUSH: Duration = Duration::from_millis(250);
/// At most this many lines of one attempt are kept.
const MAX_LINES: usize = 20_000;

/// A claimed task with its lifelines.
#[derive(Debug)]
pub struct Attempt {
    /// The task.
    pub task: Claimed,
    /// Postgres.
    pub pool: PgPool,
    stop: watch::Receiver<Option<Stop>>,
    acknowledged: watch::Receiver<Instant>,
    step: Arc<Mutex<String>>,
    lines: Mutex<Option<mpsc::Sender<NewLine>>>,
    written: Mutex<Option<oneshot::Receiver<()>>>,
    dropped: AtomicU64,
    changes: Changes,
}

impl Attempt {
    pub(super) fn new(
        task: Claimed,
        pool: PgPool,
        stop: watch::Receiver<Option<Stop>>,
        acknowledged: watch::Receiver<Instant>,
        changes: Changes,
    ) -> Self {
        let (lines, rx) = mpsc::channel(1000);
        let (done, written) = oneshot::channel();
        tokio::spawn(write_lines(
            pool.clone(),
            task.clone(),
            changes.clone(),
            rx,
            done,
        ));
        Self {
            task,
            pool,
            stop,
            acknowledged,
            step: Arc::default(),
            lines: Mutex::new(Some(lines)),
            written: Mutex::new(Some(written)),
            dropped: AtomicU64::new(0),
            changes,
        }
    }

    /// Begins the next step; the one before has succeeded.
    ///
    /// # Errors
    /// [`Lost::Lease`] when the task is not this attempt's any more: nothing may be done.
    pub async fn step(&self, name: &str) -> Result<(), Lost> {
        *lock(&self.step) = name.into();
        let task = &self.task;
        let begun = task::begin_step(&self.pool, task.id, task.token, task.attempt, name);
        if !db::answered(begun).await? {
            return Err(Lost::Lease);
        }
        self.changes.changed("task", self.task.id);
        self.changes.changed("instance", self.task.instance_id);
        Ok(())
    }

    /// Tells what this attempt sees of its instance, before the observer gets round to it.
    ///
    /// # Errors
    /// From Postgres.
    pub async fn seen(&self, readiness: &Readiness) -> Result<(), Lost> {
        let mut tx = self.pool.begin().await?;
        if !db_queue::hold(&mut tx, self.task.id, self.task.token).await? {
            return Err(Lost::Lease);
        }
        let differs = observed::upsert(&mut *tx, self.task.instance_id, readiness).await?;
        tx.commit().await?;
        if differs {
            self.changes.changed("instance", self.task.instance_id);
        }
        Ok(())
    }

    /// Adds a line to the log, under the current step. Escape codes are made visible. Never blocks: a flood is cut, and says so.
    pub fn log(&self, stream: &'static str, text: &str) {
        let line = NewLine {
            at: crate::clock::now(),
            step: lock(&self.step).clone(),
            stream,
            text: inert(text),
        };
        if let Some(lines) = lock(&self.lines).as_ref()
            && lines.try_send(line).is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends the log and the running step.
    pub(super) async fn close(&self, state: StepState) {
        let lines = lock(&self.lines).take();
        let dropped = self.dropped.load(Ordering::Relaxed);
        if let (Some(lines), 1..) = (lines, dropped) {
            let text = format!("… {dropped} lines came too fast and were not kept");
            let step = lock(&self.step).clone();
            let line = NewLine {
                at: crate::clock::now(),
                step,
                stream: "svcforge",
                text,
            };
            let _ = lines.send(line).await;
        }
        let written = lock(&self.written).take();
        if let Some(written) = written {
            let _ = tokio::time::timeout(Duration::from_secs(10), written).await;
        }
        if !lock(&self.step).is_empty() {
            let ended = task::end_step(&self.pool, self.task.id, self.task.token, state);
            let _ = db::answered(ended).await;
        }
    }

    /// When the newest acknowledged heartbeat was sent. What a child process is kept alive by.
    pub fn heartbeats(&self) -> watch::Receiver<Instant> {
        self.acknowledged.clone()
    }

    /// Why the attempt should stop, if it should.
    pub fn stopped(&self) -> Option<Stop> {
        self.stop.borrow().clone()
    }

    /// Waits until it should stop.
    pub async fn until_stopped(&self) -> Stop {
        let mut stop = self.stop.clone();
        match stop.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or(Stop::LeaseLost),
            // The worker that would tell is gone.
            Err(_) => Stop::LeaseLost,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Makes control characters visible: a log line can neither move a terminal's cursor nor fake another line.
pub fn inert(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars().take(4000) {
        match c {
            '\t' => out.push_str("    "),
            c if c.is_control() => out.extend(c.escape_default()),
            // Characters that turn the direction of text around.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

async fn write_lines(
    pool: PgPool,
    task: Claimed,
    changes: Changes,
    mut rx: mpsc::Receiver<NewLine>,
    done: oneshot::Sender<()>,
) {
    let mut kept = 0;
    let mut open = true;
    while open {
        let Some(first) = rx.recv().await else { break };
        let mut batch = vec![first];
        let until = Instant::now() + FLUSH;
        while batch.len() < 500 {
            match tokio::time::timeout_at(until, rx.recv()).await {
                Ok(Some(line)) => batch.push(line),
                Ok(None) => {
                    open = false;
                    break;
                }
                Err(_) => break,
            }
        }
        if kept >= MAX_LINES {
            continue;
        }
        kept += batch.len();
        if kept >= MAX_LINES {
            batch.push(NewLine {
                text: format!("… more than {MAX_LINES} lines; the rest is not kept"),
                ..clone_place(&batch)
            });
        }
        let mut written = task::append_log(&pool, task.id, task.token, &batch).await;
        for pause in [200, 1000, 4000] {
            if written.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
            written = task::append_log(&pool, task.id, task.token, &batch).await;
        }
        if let Err(error) = written {
            tracing::warn!(event = "task.log_lost", task_id = %task.id, lines = batch.len(), %error);
        }
        changes.changed("task", task.id);
    }
    let _ = done.send(());
}

fn clone_place(batch: &[NewLine]) -> NewLine {
    NewLine {
        at: crate::clock::now(),
        step: batch.last().map(|l| l.step.clone()).unwrap_or_default(),
        stream: "svcforge",
        text: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::inert;

    #[test]
    fn escape_codes_and_line_breaks_are_shown_not_obeyed() {
        assert_eq!(
            inert("\x1b[2Jhello\r\nworld\x07"),
            "\\u{1b}[2Jhello\\r\\nworld\\u{7}"
        );
        assert_eq!(inert("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(inert("größe\tx"), "größe    x");
        assert_eq!(inert(&"x".repeat(9000)).len(), 4000);
    }
}
