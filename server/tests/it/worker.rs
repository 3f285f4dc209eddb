//! The worker with scripted faults: what an ending means for task and instance.

use crate::support::TestApp;
use serde_json::json;
use std::time::Duration;
use svcforge::provision::Fault;

async fn newest_task(app: &TestApp, id: &str) -> serde_json::Value {
    app.client("admin")
        .get(&format!("/api/v1/instances/{id}/tasks"))
        .await
        .1["items"][0]
        .clone()
}

#[tokio::test]
async fn a_request_becomes_ready_with_steps_log_and_timeline() {
    let app = TestApp::new().await;
    app.scripted(Duration::from_millis(50));
    let member = app.client("member");
    let id = member.ask("cache", "c", json!({})).await;
    app.wait(&id, &["ready"]).await;
    let task = newest_task(&app, &id).await;
    assert_eq!(
        (task["state"].as_str(), task["attempt"].as_i64()),
        (Some("succeeded"), Some(1))
    );
    let step = &task["steps"][0];
    assert_eq!(step["state"], "succeeded");
    assert!(step["finished_at"].is_string());
    let (_, log) = member
        .get(&format!(
            "/api/v1/tasks/{}/log",
            task["id"].as_str().unwrap()
        ))
        .await;
    assert!(
        log["items"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with("simulated"),
        "{log:#}"
    );
    let (_, events) = member.get(&format!("/api/v1/instances/{id}/events")).await;
    let kinds: Vec<&str> = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        ["state.ready", "state.provisioning", "instance.requested"]
    );
}

#[tokio::test]
async fn a_hopeless_fault_fails_at_once_and_a_person_may_retry() {
    let app = TestApp::new().await;
    app.scripted(Duration::from_millis(5))
        .fail_next(Fault::Rejected("no such key: <b>size</b>".into()));
    let member = app.client("member");
    let id = member.ask("cache", "c", json!({})).await;
    let failed = app.wait(&id, &["failed"]).await;
    assert_eq!(failed["last_error"], "no such key: <b>size</b>");
    assert_eq!(newest_task(&app, &id).await["state"], "failed");
    let (status, task) = member
        .post(&format!("/api/v1/instances/{id}/retry"), json!({}))
        .await;
    assert_eq!(status, 202, "{task:#}");
    let ready = app.wait(&id, &["ready"]).await;
    assert_eq!(ready["last_error"], serde_json::Value::Null);
}

#[tokio::test]
async fn an_outage_is_waited_out_and_costs_no_attempt() {
    let app = TestApp::new().await;
    let scripted = app.scripted(Duration::from_millis(5));
    scripted.fail_next(Fault::Outage {
        what: "the Kubernetes API".into(),
        error: "connection refused".into(),
    });
    let id = app.client("member").ask("cache", "c", json!({})).await;
    let until = std::time::Instant::now() + Duration::from_secs(10);
    let waiting = loop {
        let task = newest_task(&app, &id).await;
        if task["waiting_for"].is_string() {
            break task;
        }
        assert!(std::time::Instant::now() < until, "{task:#}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(
        (waiting["waiting_for"].as_str(), waiting["attempt"].as_i64()),
        (Some("the Kubernetes API"), Some(0))
    );
    app.wait(&id, &["ready"]).await;
    assert_eq!(newest_task(&app, &id).await["attempt"], 1);
}

#[tokio::test]
async fn a_failure_is_tried_again_and_told() {
    let app = TestApp::new().await;
    app.scripted(Duration::from_millis(5))
        .fail_next(Fault::Failed("flaky".into()));
    let id = app.client("member").ask("cache", "c", json!({})).await;
    app.wait(&id, &["ready"]).await;
    assert_eq!(newest_task(&app, &id).await["attempt"], 2);
    let (_, events) = app
        .client("member")
        .get(&format!("/api/v1/instances/{id}/events"))
        .await;
    assert!(
        events.to_string().contains("Attempt 1 of 4 failed: flaky"),
        "{events:#}"
    );
}

#[tokio::test]
async fn deleting_stops_a_running_install_and_wins() {
    let app = TestApp::new().await;
    let slow = app.scripted(Duration::from_secs(30));
    let member = app.client("member");
    let id = member.ask("cache", "c", json!({})).await;
    app.wait(&id, &["provisioning"]).await;
    drop(slow);
    assert_eq!(
        member.delete(&format!("/api/v1/instances/{id}")).await.0,
        202
    );
    let until = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let (_, tasks) = member.get(&format!("/api/v1/instances/{id}/tasks")).await;
        let states: Vec<(String, String)> = tasks["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| {
                (
                    t["kind"].as_str().unwrap().into(),
                    t["state"].as_str().unwrap().into(),
                )
            })
            .collect();
        if states
            == [
                ("deprovision".into(), "running".into()),
                ("provision".into(), "cancelled".into()),
            ]
        {
            break;
        }
        assert!(std::time::Instant::now() < until, "{states:?}");
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert_eq!(
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"],
        "deleting"
    );
}

#[tokio::test]
async fn a_stopping_worker_gives_its_work_back_unpunished() {
    let app = TestApp::new().await;
    let stop = app.worker(std::sync::Arc::new(
        svcforge::provision::scripted::Scripted::new(Duration::from_secs(30)),
    ));
    let id = app.client("member").ask("cache", "c", json!({})).await;
    app.wait(&id, &["provisioning"]).await;
    stop.cancel();
    let until = std::time::Instant::now() + Duration::from_secs(5);
    while newest_task(&app, &id).await["state"] != "queued" {
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert_eq!(newest_task(&app, &id).await["attempt"], 0);
    app.scripted(Duration::from_millis(5));
    app.wait(&id, &["ready"]).await;
    assert_eq!(newest_task(&app, &id).await["attempt"], 1);
}

#[tokio::test]
async fn a_lost_worker_is_taken_over_by_another() {
    let app = TestApp::new().await;
    let id = app.client("member").ask("cache", "c", json!({})).await;
    // A worker that claims and is never heard of again.
    let kinds = ["provision".to_owned()];
    let lost = svcforge::db::queue::claim(
        &app.db.pool,
        svcforge::ids::new_id(),
        &kinds,
        1,
        svcforge::db::queue::Priority::Upgrade,
        app.timing.lease,
        app.timing.deadline,
    )
    .await
    .unwrap();
    assert_eq!(lost.len(), 1);
    app.scripted(Duration::from_millis(5));
    app.wait(&id, &["ready"]).await;
    assert_eq!(newest_task(&app, &id).await["attempt"], 2);
}

#[tokio::test]
async fn a_task_that_loses_its_workers_again_and_again_ends() {
    let app = TestApp::new().await;
    let id = app.client("member").ask("cache", "c", json!({})).await;
    sqlx::query("update task set attempt = max_attempts, error = 'its worker was lost'")
        .execute(&app.db.pool)
        .await
        .unwrap();
    app.scripted(Duration::from_millis(5));
    let failed = app.wait(&id, &["failed", "ready"]).await;
    assert_eq!(
        (failed["state"].as_str(), failed["last_error"].as_str()),
        (Some("failed"), Some("its worker was lost"))
    );
}

#[tokio::test]
async fn cancelling_work_that_waits_leaves_an_instance_one_can_retry() {
    let app = TestApp::new().await;
    let scripted = app.scripted(Duration::from_millis(5));
    scripted.fail_next(Fault::Outage {
        what: "the Kubernetes API".into(),
        error: "refused".into(),
    });
    let member = app.client("member");
    let id = member.ask("cache", "c", json!({})).await;
    let until = std::time::Instant::now() + Duration::from_secs(10);
    let task = loop {
        let task = newest_task(&app, &id).await;
        if task["waiting_for"].is_string() {
            break task["id"].as_str().unwrap().to_owned();
        }
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    // That it takes over what stands in its place was a person's word, and holds for the next try.
    sqlx::query(r#"update task set payload = '{"adopt": true}'"#)
        .execute(&app.db.pool)
        .await
        .unwrap();
    assert_eq!(
        member
            .post(&format!("/api/v1/tasks/{task}/cancel"), json!({}))
            .await
            .0,
        202
    );
    assert_eq!(
        app.wait(&id, &["failed"]).await["last_error"],
        "member cancelled it"
    );
    assert_eq!(
        member
            .post(&format!("/api/v1/instances/{id}/retry"), json!({}))
            .await
            .0,
        202
    );
    app.wait(&id, &["ready"]).await;
    let adopted =
        "select payload = '{\"adopt\": true}' from task_history where outcome = 'succeeded'";
    let adopted: bool = sqlx::query_scalar(adopted)
        .fetch_one(&app.db.pool)
        .await
        .unwrap();
    assert!(adopted);
}

#[tokio::test]
async fn a_cancel_stands_even_when_the_attempt_fails_before_it_hears_of_it() {
    let app = TestApp::new().await;
    let scripted = app.scripted(Duration::from_millis(200));
    scripted.fail_next(Fault::Failed("flaky".into()));
    let member = app.client("member");
    let id = member.ask("cache", "c", json!({})).await;
    app.wait(&id, &["provisioning"]).await;
    let task = newest_task(&app, &id).await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        member
            .post(&format!("/api/v1/tasks/{task}/cancel"), json!({}))
            .await
            .0,
        202
    );
    app.wait(&id, &["failed"]).await;
    assert_eq!(newest_task(&app, &id).await["state"], "cancelled");
}
