//! P6 and P7: the drift sweep over a real API server, and a whole tick over 100,000 instances.

use super::{at, result, setup};
use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::PostParams};
use rand::Rng;
use serde_json::json;
use sqlx::PgPool;
use std::{
    io::Write,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use svcforge::{
    cluster::{self, ClusterReleases, Listing, Releases, Seen},
    config, db,
    lease::Candidate,
    notify::Outbox,
    provision::Fault,
    queue::Timing,
    reconcile::{Context, Rules, tick},
};
use svcforge_app::domain::EntryKind;

/// Releases handed in from memory.
struct Memory(Mutex<Listing>);

#[async_trait]
impl Releases for Memory {
    async fn list(&self, _: &[String]) -> Result<Listing, Fault> {
        Ok(self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone())
    }

    async fn find_uid(&self, _: &db::observed::ObjectRef) -> Result<Option<String>, Fault> {
        Ok(None)
    }

    async fn find(&self, _: EntryKind, namespace: &str, name: &str) -> Result<Option<Seen>, Fault> {
        let listing = self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(listing
            .releases
            .get(&(namespace.to_owned(), name.to_owned()))
            .cloned())
    }
}

fn seen() -> Seen {
    Seen {
        kind: EntryKind::Helm,
        revision: 1,
        uid: None,
        status: "deployed".into(),
        installation: Some("me".into()),
        instance: None,
        modified_at: None,
    }
}

/// P7.
pub async fn measure(dsn: &str, instances: i64) -> anyhow::Result<()> {
    let (pool, own) = setup::fresh(dsn, 12).await?;
    setup::instances(&pool, instances).await?;
    let mut listing = Listing::default();
    let rows: Vec<(String, String)> =
        sqlx::query_as("select release_namespace, release_name from instance")
            .fetch_all(&pool)
            .await?;
    for place in rows {
        listing.releases.insert(place, seen());
    }
    let memory = Arc::new(Memory(Mutex::new(listing)));
    let leading = Candidate::new(&own)
        .try_lead(None)
        .await?
        .ok_or_else(|| anyhow::anyhow!("somebody leads"))?;
    let cx = Context {
        pool: pool.clone(),
        leading,
        releases: Some(memory.clone()),
        notifier: Arc::new(Outbox {
            pool: pool.clone(),
            sinks: vec![],
        }),
        rules: Rules {
            own_team: "t0".into(),
            max_in_flight: 1000,
            all_orphans: false,
            interval: Duration::from_secs(60),
            patience: Duration::from_secs(300),
            timing: Timing::standard(Duration::from_secs(240)),
        },
        changes: svcforge::changes::Changes::start(pool.clone()),
        installation: "me".into(),
        whole: true,
    };
    tick(&cx).await;
    let mut quiet = vec![];
    for _ in 0..5 {
        let began = Instant::now();
        anyhow::ensure!(tick(&cx).await.failed.is_empty());
        quiet.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    result(
        "P7",
        &format!("a tick over {instances}, nothing to do, p50"),
        at(&mut quiet, 0.5),
        "ms",
    );
    break_things(&pool, &memory).await?;
    let began = Instant::now();
    anyhow::ensure!(tick(&cx).await.failed.is_empty());
    let together = began.elapsed().as_secs_f64() * 1000.0;
    let made: Vec<(String, i64)> =
        sqlx::query_as("select coalesce(act, 'lost'), count(*) from task group by 1 order by 1")
            .fetch_all(&pool)
            .await?;
    anyhow::ensure!(
        made.iter().map(|m| m.1).sum::<i64>() == 4000,
        "each fault is one task: {made:?}"
    );
    result("P7", "a tick with 1,000 of each fault", together, "ms");
    one_row_at_a_time(&pool, together).await
}

/// 1,000 releases gone, 1,000 leases lost, 1,000 expired, 1,000 behind the catalog.
async fn break_things(pool: &PgPool, memory: &Memory) -> anyhow::Result<()> {
    let gone: Vec<(String, String)> = sqlx::query_as(
        "select release_namespace, release_name from instance order by id limit 1000",
    )
    .fetch_all(pool)
    .await?;
    {
        let mut listing = memory
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for place in &gone {
            listing.releases.remove(place);
        }
    }
    for sql in [
        "insert into task (id, kind, instance_id, team_id, state, priority, run_after, max_attempts, payload, reason, requested_by, token, lease_until, deadline_at)
         select gen_random_uuid(), 'provision', id, team_id, 'running', 1, now(), 3, '{}', 'bench', 'bench', 1, now() - interval '1 hour', now() from (select * from instance order by id offset 1000 limit 1000) i",
        "update instance set expires_at = now() where id in (select id from instance order by id offset 2000 limit 1000)",
        "update instance set entry_revision_id = (select id from entry_revision where chart_version = '1.0.0') where id in (select id from instance order by id offset 3000 limit 1000)",
    ] {
        sqlx::query(sql).execute(pool).await?;
    }
    Ok(())
}

/// The peer: the same four thousand rows, a transaction each, and a query an instance to find them.
async fn one_row_at_a_time(pool: &PgPool, together: f64) -> anyhow::Result<()> {
    let lanes = setup::lanes(pool).await?;
    let began = Instant::now();
    for (id, _) in &lanes {
        sqlx::query_scalar::<_, String>(
            "select i.state from instance i join team t on t.id = i.team_id where i.id = $1",
        )
        .bind(id)
        .fetch_one(pool)
        .await?;
    }
    for (id, team) in lanes.iter().take(4000) {
        let mut tx = pool.begin().await?;
        db::queue::lock_lanes(&mut tx, &[*id]).await?;
        sqlx::query("update instance set updated_at = now() where id = $1")
            .bind(id)
            .execute(&mut *tx)
            .await?;
        sqlx::query("insert into task (id, kind, instance_id, team_id, state, priority, run_after, max_attempts, payload, reason, requested_by)
                     values (gen_random_uuid(), 'bench', $1, $2, 'blocked', 1, now(), 3, '{}', 'bench', 'bench')").bind(id).bind(team).execute(&mut *tx).await?;
        sqlx::query("insert into instance_event (instance_id, kind, actor, message) values ($1, 'bench', 'bench', 'bench')").bind(id).execute(&mut *tx).await?;
        tx.commit().await?;
    }
    let single = began.elapsed().as_secs_f64() * 1000.0;
    result("P7", "the same, a row at a time", single, "ms");
    result("P7", "ratio", single / together, "×");
    Ok(())
}

fn payload(name: &str) -> anyhow::Result<Vec<u8>> {
    let noise: String = (0..10_000)
        .map(|_| char::from(rand::rng().random_range(b'a'..=b'z')))
        .collect();
    let release = json!({"name": name, "namespace": "bench", "version": 1, "info": {"status": "deployed", "first_deployed": "2026-01-01T00:00:00Z", "last_deployed": "2026-01-01T00:00:00Z"},
                         "chart": {"metadata": {"name": "x", "version": "1.0.0", "apiVersion": "v2"}}, "manifest": noise});
    let mut gz = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    gz.write_all(release.to_string().as_bytes())?;
    Ok(data_encoding::BASE64.encode(&gz.finish()?).into_bytes())
}

fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok())
        .unwrap_or(f64::NAN)
        / 1024.0
}

/// P6.
pub async fn sweep(kubeconfig: &str, releases: usize) -> anyhow::Result<()> {
    let named = config::Cluster {
        kubeconfig: Some(PathBuf::from(kubeconfig)),
        ..Default::default()
    };
    let clients = cluster::connect(&named)
        .await?
        .ok_or_else(|| anyhow::anyhow!("no cluster"))?;
    let reader = ClusterReleases {
        clients: clients.clone(),
        installation: svcforge::ids::new_id().to_string(),
        namespace: "svcforge-bench".into(),
        apps_namespace: "polychrome-apps".into(),
    };
    reader.ensure_marker().await?;
    let api: Api<Secret> = Api::namespaced(clients.request.clone(), "svcforge-bench");
    futures::stream::iter(0..releases)
        .map(|n| {
            let api = api.clone();
            async move {
                let name = format!("r{n}");
                let secret: Secret = serde_json::from_value(json!({
                    "metadata": {"name": format!("sh.helm.release.v1.{name}.v1"), "labels": {"owner": "helm", "name": name, "version": "1", "status": "deployed"}},
                    "type": "helm.sh/release.v1", "data": {"release": data_encoding::BASE64.encode(&payload(&name)?)}}))?;
                api.create(&PostParams::default(), &secret).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(16)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect::<anyhow::Result<()>>()?;
    let mut cold = vec![];
    for _ in 0..5 {
        let began = Instant::now();
        let listing = reader.list(&[]).await?;
        cold.push(began.elapsed().as_secs_f64() * 1000.0);
        anyhow::ensure!(
            listing.releases.len() >= releases,
            "{} of {releases}",
            listing.releases.len()
        );
    }
    result(
        "P6",
        &format!("sweep of {releases}, cold LIST, p50"),
        at(&mut cold, 0.5),
        "ms",
    );
    let (watched, _changed) = reader.watch();
    let until = Instant::now() + Duration::from_secs(60);
    while watched.listing().releases.len() < releases {
        anyhow::ensure!(Instant::now() < until, "the watch does not show all");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut warm = vec![];
    for _ in 0..9 {
        let began = Instant::now();
        let listing = watched.listing();
        warm.push(began.elapsed().as_secs_f64() * 1000.0);
        anyhow::ensure!(listing.releases.len() >= releases);
    }
    result(
        "P6",
        "the same from the watch, p50",
        at(&mut warm, 0.5),
        "ms",
    );
    result("P6", "peak memory", peak_mb(), "MB");
    Ok(())
}
