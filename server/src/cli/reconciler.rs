//! Joins the reconciler's parts: lease, ticks, catalog, observer, notifications.

use crate::{
    catalog,
    changes::Changes,
    cluster::{self, ClusterReleases, Releases},
    config, db,
    lease::{self, Candidate, Leading},
    notify::{Outbox, Sender, deliver_forever},
    queue::{Timing, Wake},
    reconcile::{self, Context, Rules},
};
use sqlx::PgPool;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// What the reconciler is made of.
pub struct Parts {
    pub pool: PgPool,
    pub direct_dsn: String,
    pub clients: Option<cluster::Clients>,
    pub catalog: Option<PathBuf>,
    pub settings: config::Reconcile,
    pub worker: config::Worker,
    pub notify: config::Notify,
    pub installation: String,
}

impl Parts {
    /// What the checks are told of settings.
    pub fn rules(&self) -> Rules {
        Rules {
            own_team: self.settings.own_team.clone(),
            max_in_flight: self.settings.max_in_flight,
            all_orphans: self.settings.orphan_scope == config::OrphanScope::All,
            interval: Duration::from_secs(self.settings.reconcile_interval_s),
            patience: self.worker.helm_timeout() + Duration::from_secs(60),
            timing: self.timing(),
        }
    }

    fn timing(&self) -> Timing {
        self.worker.timing()
    }

    /// Reads the cluster's releases.
    pub fn releases(&self) -> Option<ClusterReleases> {
        Some(releases(
            self.clients.clone()?,
            &self.installation,
            &self.worker,
        ))
    }

    /// What a check is handed.
    pub fn context(&self, leading: Leading, changes: Changes, outbox: Outbox) -> Context {
        Context {
            pool: self.pool.clone(),
            leading,
            releases: self.releases().map(|r| Arc::new(r) as Arc<dyn Releases>),
            notifier: Arc::new(outbox),
            rules: self.rules(),
            changes,
            installation: self.installation.clone(),
            whole: true,
        }
    }
}

/// Reads a cluster's releases for that installation.
pub fn releases(
    clients: cluster::Clients,
    installation: &str,
    worker: &config::Worker,
) -> ClusterReleases {
    ClusterReleases {
        clients,
        installation: installation.to_owned(),
        namespace: worker.own_namespace.clone(),
        apps_namespace: worker.apps_namespace.clone(),
    }
}

/// Starts everything that only a leader does, and the standing for it.
pub async fn start(
    parts: Parts,
    changes: Changes,
    wake: &Wake,
    running: &mut JoinSet<()>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let sender = Sender::new(parts.pool.clone(), &parts.notify)?;
    let outbox = sender.outbox();
    let (tell, leading) = watch::channel(None);
    let candidate = Candidate::new(&parts.direct_dsn);
    running.spawn(lease::lead(
        candidate,
        tell,
        changes.clone(),
        wake.changed.subscribe(),
        stop.clone(),
    ));
    if let Some(path) = parts.catalog.clone() {
        let reload = Arc::new(Notify::new());
        tokio::spawn(reload_on_hangup(reload.clone(), stop.clone()));
        running.spawn(catalog::watch(
            parts.pool.clone(),
            path,
            changes.clone(),
            reload,
            Some(leading.clone()),
            stop.clone(),
        ));
    }
    if let Some(clients) = parts.clients.clone() {
        let (pool, changes, wake) = (parts.pool.clone(), changes.clone(), wake.clone());
        running.spawn(while_leading(leading.clone(), stop.clone(), move |stop| {
            cluster::observe(
                clients.clone(),
                pool.clone(),
                changes.clone(),
                wake.changed.subscribe(),
                stop,
            )
        }));
    }
    if let Some(clients) = parts.clients.clone() {
        let (pool, changes) = (parts.pool.clone(), changes.clone());
        let (namespace, installation) = (
            parts.worker.apps_namespace.clone(),
            parts.installation.clone(),
        );
        running.spawn(while_leading(leading.clone(), stop.clone(), move |stop| {
            cluster::observe_definitions(
                clients.clone(),
                namespace.clone(),
                installation.clone(),
                pool.clone(),
                changes.clone(),
                stop,
            )
        }));
    }
    let delivering = sender.clone();
    running.spawn(while_leading(leading.clone(), stop.clone(), move |stop| {
        deliver_forever(delivering.clone(), stop)
    }));
    let (pool, sinks) = (parts.pool.clone(), outbox.sinks.clone());
    running.spawn(while_leading(leading.clone(), stop.clone(), move |stop| {
        let (pool, sinks) = (pool.clone(), sinks.clone());
        async move {
            if let Err(error) = db::notification::set_sinks(&pool, &sinks).await {
                tracing::warn!(event = "notify.away", %error);
            }
            stop.cancelled().await;
        }
    }));
    let (cluster, told) = (parts.releases(), wake.changed.clone());
    running.spawn(async move {
        let make = |leading| parts.context(leading, changes.clone(), outbox.clone());
        reconcile::run(make, cluster, leading, told, stop).await;
    });
    Ok(())
}

/// Runs something beside the leader: from when this process leads until it does not.
async fn while_leading<F: Future<Output = ()>>(
    mut leading: watch::Receiver<Option<Leading>>,
    stop: CancellationToken,
    make: impl Fn(CancellationToken) -> F,
) {
    while !stop.is_cancelled() {
        let Some(now) = *leading.borrow_and_update() else {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = leading.changed() => if changed.is_err() { return },
            }
            continue;
        };
        let until = stop.child_token();
        let lost = async {
            while leading.changed().await.is_ok() {
                if *leading.borrow() != Some(now) {
                    break;
                }
            }
            until.cancel();
        };
        tokio::join!(make(until.clone()), async {
            tokio::select! {
                () = lost => {}
                () = until.cancelled() => {}
            }
        });
    }
}

async fn reload_on_hangup(reload: Arc<Notify>, stop: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        return;
    };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = hangup.recv() => reload.notify_one(),
        }
    }
}
