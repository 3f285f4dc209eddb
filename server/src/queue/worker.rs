//! Claims, runs beside a heartbeat, finishes. A worker is known by a uuid made at its start, never by a host name.

use super::{Attempt, Ending, Handler, Stop, Timing, Wake};
use crate::{
    changes::Changes,
    db::{
        self,
        queue::{Claimed, Outcome, Priority, Return},
    },
    ids, telemetry,
};
use sqlx::{Connection, PgConnection, PgPool, Postgres, pool::PoolConnection};
use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use svcforge_app::domain::StepState;
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use uuid::Uuid;

/// A worker process.
#[derive(Clone)]
pub struct Worker {
    /// Postgres.
    pub pool: PgPool,
    /// Postgres for heartbeats alone: they must not wait for a busy pool.
    pub heart: PgPool,
    /// What tasks mean.
    pub handler: Arc<dyn Handler>,
    /// Spans.
    pub timing: Timing,
    /// Attempts at once.
    pub slots: usize,
    /// How long a stop lets attempts finish.
    pub drain: Duration,
    /// Tells others.
    pub changes: Changes,
    /// Is told.
    pub wake: Wake,
}

struct Held {
    token: i64,
    stop: watch::Sender<Option<Stop>>,
    acknowledged: watch::Sender<Instant>,
    until: Instant,
}

type HeldTasks = Arc<Mutex<HashMap<Uuid, Held>>>;

impl Worker {
    /// Works until told to stop, then drains and gives the rest back.
    pub async fn run(self, stop: CancellationToken) {
        let me = ids::new_id();
        let held: HeldTasks = Arc::default();
        let ended = CancellationToken::new();
        let heart = tokio::spawn(self.clone().beat(held.clone(), ended.clone()));
        let mut running = JoinSet::new();
        // Its own: a pool asks a connection after every use whether it still lives.
        let mut claims = None;
        // Counted here and not by what has begun: between a claim and its first step another claim may come.
        let upgrades = Arc::new(AtomicUsize::new(0));
        while !stop.is_cancelled() {
            let free = self.slots.saturating_sub(running.len());
            let mut claimed = 0;
            match self
                .claim(&mut claims, me, free, upgrades.load(Ordering::Relaxed))
                .await
            {
                Ok(tasks) => {
                    claimed = tasks.len();
                    for task in tasks {
                        let taken = usize::from(task.rollout_type.is_some());
                        let (counted, attempt) =
                            (upgrades.clone(), self.clone().attempt(task, held.clone()));
                        counted.fetch_add(taken, Ordering::Relaxed);
                        running.spawn(async move {
                            attempt.await;
                            counted.fetch_sub(taken, Ordering::Relaxed);
                        });
                    }
                }
                Err(error) => {
                    tracing::warn!(event = "claim.failed", %error);
                    if let Some(mut broken) = claims.take() {
                        broken.close_on_drop();
                    }
                }
            }
            if claimed > 0 && claimed == free {
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.wake.work.notified() => {}
                Some(_) = running.join_next(), if !running.is_empty() => {}
                () = tokio::time::sleep(self.timing.poll.mul_f64(0.5 + ids::jitter())) => {}
            }
        }
        self.wind_down(running, &held).await;
        ended.cancel();
        let _ = heart.await;
    }

    /// Fills free slots; one is kept from upgrades, so that a fleet's rollout never delays a first install.
    async fn claim(
        &self,
        connection: &mut Option<PoolConnection<Postgres>>,
        me: Uuid,
        free: usize,
        upgrades: usize,
    ) -> sqlx::Result<Vec<Claimed>> {
        let (mut tasks, kinds) = (vec![], self.handler.kinds());
        let db = match connection {
            Some(db) => db,
            None => connection.insert(self.pool.acquire().await?),
        };
        let spare = self.slots.max(2) - 1;
        for (at_least, limit) in [
            (Priority::Repair, free),
            (Priority::Upgrade, spare.saturating_sub(upgrades)),
        ] {
            let limit = limit.min(free - tasks.len());
            if limit == 0 {
                continue;
            }
            let claim = db::queue::claim(
                &mut **db,
                me,
                &kinds,
                limit as i64,
                at_least,
                self.timing.lease,
                self.timing.deadline,
            );
            match db::answered(claim).await {
                Ok(more) => tasks.extend(more),
                Err(error) if tasks.is_empty() => return Err(error),
                // Those that were taken are taken; the next claim meets the error again.
                Err(error) => {
                    tracing::warn!(event = "claim.failed", %error);
                    break;
                }
            }
        }
        Ok(tasks)
    }

    async fn wind_down(&self, mut running: JoinSet<()>, held: &HeldTasks) {
        let finish = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(self.drain, finish).await.is_ok() {
            return;
        }
        for one in lock(held).values() {
            one.stop
                .send_if_modified(|s| s.is_none() && s.replace(Stop::Shutdown).is_none());
        }
        let finish = async { while running.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(self.timing.stop_grace * 2, finish).await;
    }

    /// Renews every lease this process holds, in one statement; tells attempts what it learned.
    async fn beat(self, held: HeldTasks, ended: CancellationToken) {
        loop {
            tokio::select! {
                () = ended.cancelled() => return,
                () = tokio::time::sleep(self.timing.heartbeat) => {}
            }
            let (tasks, tokens): (Vec<Uuid>, Vec<i64>) =
                lock(&held).iter().map(|(id, h)| (*id, h.token)).unzip();
            if tasks.is_empty() {
                continue;
            }
            // The lease is counted from before the question: what the database wrote is never earlier.
            let asked = Instant::now();
            let answer = tokio::time::timeout(
                self.timing.heartbeat,
                db::queue::heartbeat(&self.heart, &tasks, &tokens, self.timing.lease),
            )
            .await;
            let beats: HashMap<Uuid, Option<String>> = match answer {
                Ok(Ok(beats)) => beats.into_iter().map(|b| (b.id, b.stop_reason)).collect(),
                Ok(Err(error)) => {
                    tracing::warn!(event = "heartbeat.failed", %error);
                    self.fail_silent(&held);
                    continue;
                }
                Err(_) => {
                    self.fail_silent(&held);
                    continue;
                }
            };
            for (task, token) in tasks.iter().zip(&tokens) {
                let guard = lock(&held);
                let Some(one) = guard.get(task).filter(|h| h.token == *token) else {
                    continue;
                };
                let why = match beats.get(task) {
                    None => Some(Stop::LeaseLost),
                    Some(Some(reason)) => Some(Stop::Asked(reason.clone())),
                    Some(None) if Instant::now() > one.until => Some(Stop::Deadline),
                    Some(None) => None,
                };
                if beats.contains_key(task) {
                    let _ = one.acknowledged.send(asked);
                }
                if let Some(why) = why {
                    one.stop
                        .send_if_modified(|s| s.is_none() && s.replace(why).is_none());
                }
            }
        }
    }

    /// Without an acknowledged heartbeat for `term_after` an attempt must stop as if its lease were lost.
    fn fail_silent(&self, held: &HeldTasks) {
        for one in lock(held).values() {
            if one.acknowledged.borrow().elapsed() > self.timing.term_after {
                one.stop
                    .send_if_modified(|s| s.is_none() && s.replace(Stop::LeaseLost).is_none());
            }
        }
    }

    async fn attempt(self, task: Claimed, held: HeldTasks) {
        let (stop, stop_rx) = watch::channel(None);
        let (acknowledged, acknowledged_rx) = watch::channel(Instant::now());
        let entry = Held {
            token: task.token,
            stop,
            acknowledged,
            until: Instant::now() + self.timing.own_deadline(),
        };
        lock(&held).insert(task.id, entry);
        let attempt = Attempt::new(
            task.clone(),
            self.pool.clone(),
            stop_rx,
            acknowledged_rx,
            self.changes.clone(),
        );
        let _ = db::task::fail_stale_steps(&self.pool, task.id, task.token, task.attempt).await;
        self.changes.changed("task", task.id);

        let ending = if let Some(why) = &task.stop_reason {
            Ending::Cancelled(why.clone())
        } else if task.attempt > task.max_attempts {
            Ending::Hopeless(
                task.error
                    .clone()
                    .unwrap_or_else(|| "it was tried too often".into()),
            )
        } else {
            use futures::FutureExt;
            let work = AssertUnwindSafe(self.handler.run(&attempt)).catch_unwind();
            work.instrument(span(&task)).await.unwrap_or_else(|_| {
                Ending::Failed("svcforge failed inside; the cause is in its log".into())
            })
        };
        let state = if ending == Ending::Done {
            StepState::Succeeded
        } else {
            StepState::Failed
        };
        attempt.close(state).await;
        if attempt.stopped() != Some(Stop::LeaseLost) {
            self.finish(&task, &ending).await;
        }
        lock(&held).remove(&task.id);
        telemetry::count_attempt(&task.kind, &ending);
        self.changes.changed("task", task.id);
        self.changes.changed("instance", task.instance_id);
        // A slot may be free: whoever admits is told.
        if let Some(service_type) = &task.rollout_type {
            self.changes.changed("rollout", service_type);
        }
        self.changes.work();
    }

    /// Writes the ending; tries again for as long as the lease lasts, since an ending that is not written is done twice.
    async fn finish(&self, task: &Claimed, ending: &Ending) {
        let until = Instant::now() + self.timing.lease;
        loop {
            match self.finish_bounded(task, ending).await {
                Ok(true) => return,
                Ok(false) => {
                    tracing::warn!(event = "task.fenced", task_id = %task.id, instance_id = %task.instance_id);
                    return;
                }
                Err(error) if Instant::now() > until => {
                    tracing::error!(event = "task.finish_failed", task_id = %task.id, %error);
                    return;
                }
                Err(error) => {
                    tracing::warn!(event = "task.finish_retried", task_id = %task.id, %error);
                    tokio::time::sleep(self.timing.heartbeat / 10).await;
                }
            }
        }
    }

    /// A connection to a peer that is silent goes with the wait for it: the pool would ask it for ever.
    async fn finish_bounded(&self, task: &Claimed, ending: &Ending) -> sqlx::Result<bool> {
        let mut own = self.pool.acquire().await?;
        let done = db::answered(self.finish_once(&mut own, task, ending)).await;
        if matches!(done, Err(sqlx::Error::PoolTimedOut)) {
            own.close_on_drop();
        }
        done
    }

    async fn finish_once(
        &self,
        db: &mut PgConnection,
        task: &Claimed,
        ending: &Ending,
    ) -> sqlx::Result<bool> {
        let mut tx = db.begin().await?;
        let Some(held) = db::queue::hold_lane(&mut tx, task).await? else {
            return Ok(false);
        };
        // Asked to stop while it ended for another reason: it is not tried again.
        let cancelled = match (ending, held.stop_reason) {
            (
                Ending::Failed(_)
                | Ending::Waiting { .. }
                | Ending::GiveBack
                | Ending::NotYet { .. },
                Some(why),
            ) => Some(Ending::Cancelled(why)),
            _ => None,
        };
        let ending = cancelled.as_ref().unwrap_or(ending);
        let last = match ending {
            Ending::Done | Ending::Hopeless(_) | Ending::Cancelled(_) => true,
            Ending::Failed(_) => task.attempt >= task.max_attempts,
            Ending::Waiting { .. } | Ending::GiveBack | Ending::NotYet { .. } => false,
        };
        self.handler.conclude(&mut tx, task, ending, last).await?;
        let held = match ending {
            Ending::Done => db::queue::finish(&mut tx, task, Outcome::Succeeded, None).await?,
            Ending::Cancelled(why) => {
                db::queue::finish(&mut tx, task, Outcome::Cancelled, Some(why)).await?
            }
            Ending::Failed(error) | Ending::Hopeless(error) if last => {
                db::queue::finish(&mut tx, task, Outcome::Failed, Some(error)).await?
            }
            Ending::Failed(error) | Ending::Hopeless(error) => {
                let how = Return::Retry {
                    error: error.clone(),
                    pause: backoff(task.attempt),
                };
                db::queue::give_back(&mut tx, task, &how).await?
            }
            Ending::Waiting { what, error } => {
                // Spread out, so that the end of an outage is not a stampede.
                let pause = Duration::from_secs(5).mul_f64(1.0 + 2.0 * ids::jitter());
                let how = Return::Wait {
                    what: what.clone(),
                    error: error.clone(),
                    pause,
                };
                db::queue::give_back(&mut tx, task, &how).await?
            }
            Ending::GiveBack => db::queue::give_back(&mut tx, task, &Return::GiveBack).await?,
            Ending::NotYet { why, until } => {
                let how = Return::Gate {
                    why: why.clone(),
                    until: *until,
                };
                db::queue::give_back(&mut tx, task, &how).await?
            }
        };
        tx.commit().await?;
        Ok(held)
    }
}

/// The attempt's span, joined to the trace of who asked.
fn span(task: &Claimed) -> tracing::Span {
    let span = tracing::info_span!(
        "task",
        task_id = %task.id,
        instance_id = %task.instance_id,
        kind = %task.kind,
        attempt = task.attempt
    );
    telemetry::join(&span, task.traceparent.as_deref());
    span
}

/// Pause after that many failed attempts: exponential from 10 s to 10 min, with full jitter (but never less than a second).
pub fn backoff(attempt: i32) -> Duration {
    let doublings = u32::try_from(attempt.clamp(1, 7) - 1).unwrap_or(0);
    let most = Duration::from_secs(10 * 2u64.pow(doublings)).min(Duration::from_secs(600));
    most.mul_f64(ids::jitter()).max(Duration::from_secs(1))
}

fn lock(held: &HeldTasks) -> std::sync::MutexGuard<'_, HashMap<Uuid, Held>> {
    held.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_is_bounded_and_jittered() {
        for attempt in [-1, 0, 1, 3, 100, i32::MAX] {
            let pause = backoff(attempt);
            assert!(
                (Duration::from_secs(1)..=Duration::from_secs(600)).contains(&pause),
                "{attempt}: {pause:?}"
            );
        }
        let many: std::collections::BTreeSet<_> = (0..20).map(|_| backoff(5)).collect();
        assert!(many.len() > 1, "jitter");
    }
}
