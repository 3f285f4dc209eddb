//! Who leads. A row in Postgres decides, next to the data: a holder made at the start of a process, an epoch, an expiry. Renewed on
//! a connection of its own with a short statement timeout; every leader write begins with [`Leading::begin`], which fences it by
//! the epoch. No session advisory locks: they break behind poolers and on silent disconnects.

use crate::{changes::Changes, db, ids};
use sqlx::{Connection, PgConnection, PgPool, Postgres, Transaction};
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Name of the reconciler's lease.
pub const RECONCILER: &str = "reconciler";
/// How long a renewal holds.
pub const HOLDS: Duration = Duration::from_secs(15);
/// Between renewals, and between a follower's looks.
pub const RENEW: Duration = Duration::from_secs(5);

/// A leader's proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leading {
    /// Counts takeovers.
    pub epoch: i64,
}

/// Why a leader's write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum NotLeading {
    /// Somebody else leads.
    #[error("the lease was lost: another reconciler leads")]
    Lost,
    /// Postgres said so.
    #[error("database: {0}")]
    Db(#[from] sqlx::Error),
}

impl Leading {
    /// Begins a transaction that can only commit while this epoch leads: a takeover waits for it, and it for nothing. A leader that
    /// is frozen in it is cut off after 5 s, so that it cannot block its successor.
    ///
    /// # Errors
    /// [`NotLeading::Lost`] when another epoch leads.
    pub async fn begin(self, pool: &PgPool) -> Result<Transaction<'static, Postgres>, NotLeading> {
        let mut tx = pool.begin().await?;
        if !db::leader::confirm(&mut tx, RECONCILER, self.epoch).await? {
            return Err(NotLeading::Lost);
        }
        Ok(tx)
    }
}

/// Who holds the lease, for those who do not get it.
#[derive(Clone, Debug)]
pub struct Holder {
    /// Made at the start of its process.
    pub id: Uuid,
    /// Since when.
    pub since: jiff::Timestamp,
}

/// A candidate: one a process.
#[derive(Debug)]
pub struct Candidate {
    me: Uuid,
    dsn: String,
    db: Option<PgConnection>,
}

impl Candidate {
    /// For that database; without a transaction pooler between, if there is a choice.
    pub fn new(dsn: &str) -> Self {
        Self {
            me: ids::new_id(),
            dsn: dsn.to_owned(),
            db: None,
        }
    }

    async fn db(&mut self) -> sqlx::Result<&mut PgConnection> {
        if self.db.is_none() {
            let options: sqlx::postgres::PgConnectOptions = self.dsn.parse()?;
            let options = options.options([("statement_timeout", "3000")]);
            let connecting = PgConnection::connect_with(&options);
            let connection = tokio::time::timeout(Duration::from_secs(3), connecting)
                .await
                .map_err(|_| sqlx::Error::PoolTimedOut)??;
            self.db = Some(connection);
        }
        self.db.as_mut().ok_or(sqlx::Error::PoolClosed)
    }

    /// Takes or renews the lease; none while somebody else holds it.
    ///
    /// # Errors
    /// From Postgres; the connection is made anew at the next call.
    pub async fn try_lead(&mut self, now: Option<Leading>) -> sqlx::Result<Option<Leading>> {
        let me = self.me;
        let asked = async {
            let db = self.db().await?;
            match now {
                Some(leading)
                    if db::leader::renew(db, RECONCILER, leading.epoch, HOLDS).await? =>
                {
                    Ok(Some(leading))
                }
                _ => db::leader::take(db, RECONCILER, me, HOLDS).await,
            }
        };
        let answer = tokio::time::timeout(Duration::from_secs(4), asked)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut));
        if answer.is_err() {
            self.db = None;
        }
        answer
    }

    /// Gives the lease up, so that a follower need not wait for its end.
    pub async fn give_up(&mut self, leading: Leading) {
        if let Ok(db) = self.db().await {
            let _ = db::leader::give_up(db, RECONCILER, leading.epoch).await;
        }
    }
}

/// Leads whenever it can, until told to stop; tells by the channel. While Postgres is away a leader stays one: its writes are
/// fenced, and only a successor's takeover ends its epoch.
pub async fn lead(
    mut candidate: Candidate,
    tell: watch::Sender<Option<Leading>>,
    changes: Changes,
    mut told: broadcast::Receiver<Option<String>>,
    stop: CancellationToken,
) {
    let mut leading = None;
    while !stop.is_cancelled() {
        match candidate.try_lead(leading).await {
            Ok(answer) => {
                if answer != leading {
                    match answer {
                        Some(l) => tracing::info!(event = "lease.taken", epoch = l.epoch),
                        None => tracing::warn!(event = "lease.lost"),
                    }
                }
                leading = answer;
                let _ = tell.send_if_modified(|old| std::mem::replace(old, answer) != answer);
            }
            Err(error) => tracing::warn!(event = "lease.unknown", %error),
        }
        let pause = if leading.is_some() {
            RENEW
        } else {
            RENEW.mul_f64(0.5 + ids::jitter() / 2.0)
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
            () = given_up(&mut told), if leading.is_none() => {}
        }
    }
    // The reconciler finishes its tick first (it holds the other end), under a lease that is renewed meanwhile.
    loop {
        tokio::select! {
            () = tell.closed() => break,
            () = tokio::time::sleep(RENEW), if leading.is_some() => {
                if let Ok(answer) = candidate.try_lead(leading).await {
                    leading = answer;
                }
            }
        }
    }
    if let Some(leading) = leading {
        candidate.give_up(leading).await;
        changes.changed("leader", "free");
        tracing::info!(event = "lease.given_up", epoch = leading.epoch);
    }
}

/// A leader that stops tells so.
async fn given_up(told: &mut broadcast::Receiver<Option<String>>) {
    loop {
        match told.recv().await {
            Ok(Some(message)) if message == "leader:free" => return,
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}
