//! Credentials: sealed, audited, never kept.

use crate::support::TestApp;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn a_reveal_is_sealed_single_use_and_audited() {
    let app = TestApp::new().await;
    app.scripted(Duration::from_millis(5));
    let member = app.client("member");
    let id = member.ask("postgres", "db", json!({})).await;
    app.wait(&id, &["ready"]).await;
    let path = format!("/api/v1/instances/{id}/connection");
    let (_, masked) = member.get(&path).await;
    let password = |c: &serde_json::Value| {
        c["fields"]
            .as_array()
            .unwrap()
            .iter()
            .find(|f| f["name"] == "Password")
            .unwrap()["value"]
            .clone()
    };
    assert_eq!(password(&masked), serde_json::Value::Null);
    assert_eq!(
        app.client("viewer")
            .get(&format!("{path}?reveal=true"))
            .await
            .0,
        403
    );
    let (status, shown) = member.get(&format!("{path}?reveal=true")).await;
    assert_eq!(
        (status, password(&shown).as_str()),
        (200, Some("simulated")),
        "{shown:#}"
    );
    let left: i64 = sqlx::query_scalar("select count(*) from reveal")
        .fetch_one(&app.db.pool)
        .await
        .unwrap();
    assert_eq!(left, 0, "single use");
    let audited: i64 = sqlx::query_scalar(
        "select count(*) from audit where action = 'connection.reveal' and actor = 'member'",
    )
    .fetch_one(&app.db.pool)
    .await
    .unwrap();
    assert_eq!(audited, 1);
}

#[tokio::test]
async fn without_a_worker_a_reveal_says_so() {
    let app = TestApp::new().await;
    let member = app.client("member");
    let id = member.ask("postgres", "db", json!({})).await;
    let (status, problem) = member
        .get(&format!("/api/v1/instances/{id}/connection?reveal=true"))
        .await;
    assert_eq!(
        status, 409,
        "nothing to reveal before its first step: {problem:#}"
    );
    sqlx::query("update instance set state = 'provisioning'")
        .execute(&app.db.pool)
        .await
        .unwrap();
    let (status, problem) = member
        .get(&format!("/api/v1/instances/{id}/connection?reveal=true"))
        .await;
    assert_eq!(
        (status, problem["retry_after"].as_i64()),
        (503, Some(5)),
        "{problem:#}"
    );
}
