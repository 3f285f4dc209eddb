//! SQL, and only here: one file a table family, checked queries, private rows → domain.

pub mod audit;
pub mod catalog;
pub mod definition;
pub mod drift;
pub mod event;
pub mod expiry;
pub mod gauges;
pub mod idempotency;
pub mod installation;
pub mod instance;
pub mod leader;
pub mod leftover;
pub mod notification;
pub mod observed;
pub mod pause;
pub mod queue;
pub mod reveal;
pub mod rollout;
pub mod seed;
pub mod session;
pub mod standing;
pub mod task;
pub mod team;
pub mod user;

use anyhow::Context;
use sqlx::{
    Connection, PgPool,
    migrate::{MigrateError, Migrator},
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::{str::FromStr, time::Duration};

/// jiff's timestamp as sqlx carries it.
pub use jiff_sqlx::Timestamp as Timestamptz;

/// Every migration, built in.
pub static MIGRATIONS: Migrator = sqlx::migrate!("../migrations");

/// A connection that was not used for this long is asked whether it still lives before it is used.
const RESTED: Duration = Duration::from_secs(1);

/// Oldest Postgres that works.
pub const MIN_POSTGRES: i32 = 150_000;

/// Connects with deadlines on everything: a peer that goes silent must not hold a request for ever (sqlx#4349).
///
/// # Errors
/// When the DSN cannot be read, Postgres cannot be reached within 10 s, or it is too old.
pub async fn connect(settings: &crate::config::Database) -> anyhow::Result<PgPool> {
    let dsn = settings.dsn()?;
    let options = PgConnectOptions::from_str(dsn)
        .context("SVCFORGE_PG_DSN is not a Postgres DSN")?
        .application_name("svcforge")
        .options([
            ("statement_timeout", "15s"),
            ("idle_in_transaction_session_timeout", "30s"),
            ("lock_timeout", "10s"),
            // Compiling a statement took 100 ms and more, for statements that run for five.
            ("jit", "off"),
        ]);
    let pool = PgPoolOptions::new()
        .min_connections(settings.pool_min_size)
        .max_connections(settings.pool_max_size.max(settings.pool_min_size).max(2))
        .acquire_timeout(Duration::from_secs(5))
        .max_lifetime(Duration::from_secs(1800))
        // A ping before every statement doubles its round trips: only what has rested may have died unseen.
        .test_before_acquire(false)
        .before_acquire(|connection, meta| {
            Box::pin(async move { Ok(meta.idle_for < RESTED || connection.ping().await.is_ok()) })
        })
        .connect_with(options)
        .await
        .context("cannot reach the Postgres that SVCFORGE_PG_DSN names")?;
    let version: i32 =
        sqlx::query_scalar!(r#"select current_setting('server_version_num')::int as "v!""#)
            .fetch_one(&pool)
            .await?;
    anyhow::ensure!(
        version >= MIN_POSTGRES,
        "Postgres {}.{} is too old: svcforge needs 15 or newer",
        version / 10_000,
        version % 10_000
    );
    Ok(pool)
}

/// No statement runs longer than this: what has no answer by then went to a peer that is silent.
const SILENT: Duration = Duration::from_secs(20);

/// The answer, or an outage once nothing can come any more. For what nobody else puts a deadline on.
///
/// # Errors
/// Those of the work, and [`sqlx::Error::PoolTimedOut`].
pub async fn answered<T>(work: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    match tokio::time::timeout(SILENT, work).await {
        Ok(answer) => answer,
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}

/// A pool of two connections, for what must never wait for a busy one: heartbeats.
///
/// # Errors
/// When Postgres cannot be reached.
pub async fn connect_few(dsn: &str) -> anyhow::Result<PgPool> {
    connect(&crate::config::Database {
        pg_dsn: Some(dsn.to_owned()),
        pg_direct_dsn: None,
        pool_min_size: 1,
        pool_max_size: 2,
    })
    .await
}

/// Applies what is missing.
///
/// # Errors
/// When the database was migrated by a newer svcforge, or a migration fails.
pub async fn migrate(pool: &PgPool) -> anyhow::Result<()> {
    match MIGRATIONS.run(pool).await {
        // Before anything writes history: a process of the web alone makes no months.
        Ok(()) => Ok(queue::ensure_partitions(pool).await?),
        Err(MigrateError::VersionMissing(version)) => anyhow::bail!(
            "the database is newer than this svcforge: it has migration {version}, which this binary does not know. Run the newer svcforge"
        ),
        Err(error) => Err(error).context("cannot migrate the database"),
    }
}

/// Refuses to run on a schema that is not exactly this binary's.
///
/// # Errors
/// Names `svcforge migrate`, or the newer binary, as the fix.
pub async fn check_migrated(pool: &PgPool) -> anyhow::Result<()> {
    let newest = MIGRATIONS.iter().map(|m| m.version).max().unwrap_or(0);
    let applied = sqlx::query_scalar::<_, Option<i64>>(
        "select max(version) from _sqlx_migrations where success",
    )
    .fetch_one(pool)
    .await
    .unwrap_or(None)
    .unwrap_or(0);
    anyhow::ensure!(
        applied >= newest,
        "the database is at migration {applied}, this svcforge needs {newest}: run `svcforge migrate` first"
    );
    anyhow::ensure!(
        applied <= newest,
        "the database is newer than this svcforge: it is at migration {applied}, this binary knows up to {newest}. Run the newer svcforge"
    );
    Ok(())
}

/// The database's clock: what scheduling reads.
///
/// # Errors
/// From Postgres.
pub async fn now(db: impl sqlx::PgExecutor<'_>) -> sqlx::Result<jiff::Timestamp> {
    Ok(sqlx::query_scalar!(r#"select now() as "now!""#)
        .fetch_one(db)
        .await?
        .to_jiff())
}
