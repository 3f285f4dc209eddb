//! A database a test, copied from a migrated template.

use sqlx::{Connection, Executor, PgConnection, PgPool};
use svcforge::{config, db};
use tokio::sync::OnceCell;

static TEMPLATE: OnceCell<String> = OnceCell::const_new();

fn admin_dsn() -> String {
    std::env::var("SVCFORGE_TEST_PG")
        .expect("SVCFORGE_TEST_PG is not set: run the tests by ./dev test")
}

fn dsn_of(name: &str) -> String {
    let admin = admin_dsn();
    let (base, _) = admin.rsplit_once('/').unwrap();
    format!("{base}/{name}")
}

pub fn settings(dsn: &str) -> config::Database {
    config::Database {
        pg_dsn: Some(dsn.into()),
        pg_direct_dsn: None,
        pool_min_size: 1,
        pool_max_size: 12,
    }
}

async fn template() -> &'static str {
    TEMPLATE
        .get_or_init(|| async {
            let name = format!("template_{}", svcforge::ids::new_id().simple());
            let mut admin = PgConnection::connect(&admin_dsn()).await.unwrap();
            admin
                .execute(sqlx::AssertSqlSafe(format!("create database {name}")))
                .await
                .unwrap();
            let pool = db::connect(&settings(&dsn_of(&name))).await.unwrap();
            db::migrate(&pool).await.unwrap();
            pool.close().await;
            name
        })
        .await
}

pub struct TestDb {
    pub pool: PgPool,
    pub dsn: String,
}

impl TestDb {
    pub async fn new() -> Self {
        let name = format!("t_{}", svcforge::ids::new_id().simple());
        let template = template().await;
        let mut admin = PgConnection::connect(&admin_dsn()).await.unwrap();
        // Two copies of one template at once wait for each other's connection to it.
        loop {
            match admin
                .execute(sqlx::AssertSqlSafe(format!(
                    "create database {name} template {template}"
                )))
                .await
            {
                Ok(_) => break,
                Err(error) if error.to_string().contains("being accessed") => {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await
                }
                Err(error) => panic!("{error}"),
            }
        }
        let dsn = dsn_of(&name);
        let pool = db::connect(&settings(&dsn)).await.unwrap();
        Self { pool, dsn }
    }
}
