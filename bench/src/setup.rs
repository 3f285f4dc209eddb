//! A database a measurement: migrated, with a catalog entry, a team and as many instances as are asked for.

use anyhow::Context;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};
use svcforge::{config, db};
use uuid::Uuid;

/// A fresh database and its DSN.
pub async fn fresh(admin: &str, connections: u32) -> anyhow::Result<(PgPool, String)> {
    let name = format!("bench_{}", svcforge::ids::new_id().simple());
    let mut connection = PgConnection::connect(admin).await?;
    connection
        .execute(AssertSqlSafe(format!("create database {name}")))
        .await?;
    let (base, _) = admin
        .rsplit_once('/')
        .context("the DSN names no database")?;
    let dsn = format!("{base}/{name}");
    let pool = db::connect(&config::Database {
        pg_dsn: Some(dsn.clone()),
        pg_direct_dsn: None,
        pool_min_size: 4,
        pool_max_size: connections,
    })
    .await?;
    db::migrate(&pool).await?;
    Ok((pool, dsn))
}

/// Two revisions of one type (the older and the catalog's), ten teams, and `count` ready instances on the catalog's.
pub async fn instances(pool: &PgPool, count: i64) -> anyhow::Result<()> {
    let spec = |version: &str| serde_json::json!({"type": "x", "kind": "helm", "title": "X", "summary": "x", "chart_version": version, "max_in_flight": 1000, "delete_grace": "0s"});
    let mut ids = vec![];
    for version in ["1.0.0", "1.1.0"] {
        let id = svcforge::ids::new_id();
        sqlx::query("insert into entry_revision (id, service_type, kind, chart_version, digest, spec) values ($1, 'x', 'helm', $2, $3, $4)")
            .bind(id)
            .bind(version)
            .bind(id.as_bytes().to_vec())
            .bind(spec(version))
            .execute(pool)
            .await?;
        ids.push(id);
    }
    let mut tx = pool.begin().await?;
    db::catalog::publish(&mut tx, b"bench", &[("x".into(), ids[1])]).await?;
    tx.commit().await?;
    sqlx::query("insert into team (id, slug, title, namespace) select gen_random_uuid(), 't' || n, 'T', 'svcf-t' || n from generate_series(1, 10) n")
        .execute(pool)
        .await?;
    sqlx::query(
        "insert into instance (id, team_id, service_type, kind, name, state, entry_revision_id, release_name, release_namespace, release_revision, parameters, created_by)
         select gen_random_uuid(), t.id, 'x', 'helm', 'i' || n, 'ready', $2, 'i' || n, t.namespace, 1, '{}', 'bench'
         from generate_series(1, $1) n join (select id, namespace, row_number() over (order by slug) - 1 as k from team) t on t.k = n % 10",
    )
    .bind(count)
    .bind(ids[1])
    .execute(pool)
    .await?;
    sqlx::query("analyze").execute(pool).await?;
    Ok(())
}

/// Instance and team of every instance.
pub async fn lanes(pool: &PgPool) -> anyhow::Result<Vec<(Uuid, Uuid)>> {
    Ok(
        sqlx::query_as("select id, team_id from instance order by id")
            .fetch_all(pool)
            .await?,
    )
}
