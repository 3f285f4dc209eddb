//! The database and the domain say the same.

use crate::support::TestDb;
use sqlx::Row;
use svcforge::db;
use svcforge_app::domain::instance::{STATES, TRANSITIONS};

#[tokio::test]
async fn sql_and_domain_have_one_transition_table() {
    let db = TestDb::new().await;
    let rows = sqlx::query("select from_state, to_state from instance_transition")
        .fetch_all(&db.pool)
        .await
        .unwrap();
    let mut sql: Vec<(String, String)> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
    let mut domain: Vec<(String, String)> = TRANSITIONS
        .iter()
        .map(|(a, b)| (a.to_string(), b.to_string()))
        .collect();
    sql.sort();
    domain.sort();
    assert_eq!(sql, domain);
}

#[tokio::test]
async fn postgres_refuses_every_other_transition() {
    let app = crate::support::TestApp::new().await;
    let id = app
        .client("admin")
        .ask("cache", "x", serde_json::json!({}))
        .await;
    for from in STATES {
        for to in STATES.into_iter().filter(|to| *to != from) {
            let mut tx = app.db.pool.begin().await.unwrap();
            sqlx::query("alter table instance disable trigger instance_guard")
                .execute(&mut *tx)
                .await
                .unwrap();
            sqlx::query("update instance set state = $2 where id = $1::uuid")
                .bind(&id)
                .bind(from.as_str())
                .execute(&mut *tx)
                .await
                .unwrap();
            sqlx::query("alter table instance enable trigger instance_guard")
                .execute(&mut *tx)
                .await
                .unwrap();
            let moved = sqlx::query("update instance set state = $2 where id = $1::uuid")
                .bind(&id)
                .bind(to.as_str())
                .execute(&mut *tx)
                .await;
            assert_eq!(moved.is_ok(), from.may_become(to), "{from} -> {to}");
        }
    }
}

#[tokio::test]
async fn a_newer_database_is_refused_and_named() {
    let db = TestDb::new().await;
    db::check_migrated(&db.pool).await.expect("just migrated");
    sqlx::query("insert into _sqlx_migrations (version, description, success, checksum, execution_time) values (999999, 'later', true, '', 0)")
        .execute(&db.pool)
        .await
        .unwrap();
    for refused in [
        db::check_migrated(&db.pool).await,
        db::migrate(&db.pool).await,
    ] {
        assert!(format!("{:#}", refused.unwrap_err()).contains("newer than this svcforge"));
    }
}

#[tokio::test]
async fn every_table_has_a_primary_key() {
    let db = TestDb::new().await;
    let without: Vec<String> = sqlx::query_scalar(
        "select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = 'public' and c.relkind in ('r', 'p') and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    assert!(without.is_empty(), "{without:?}");
}
