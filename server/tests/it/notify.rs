//! Notifications whose receiver does not do its part.

use crate::support::{
    TestApp,
    reconciler::{Logs, events},
};
use serde_json::json;
use std::time::{Duration, Instant};
use svcforge::{
    config, db,
    notify::{Sender, deliver_forever},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A sender to that address, with one note due to it.
async fn due_to(app: &TestApp, address: std::net::SocketAddr) -> Sender {
    let settings = config::Notify {
        webhook_url: None,
        webhook_secret: None,
        slack_url: Some(format!("http://{address}/")),
    };
    let sender = Sender::new(app.db.pool.clone(), &settings).unwrap();
    let (kinds, payloads) = (["test".to_owned()], [json!({"instance_id": "i-1"})]);
    db::notification::insert(&app.db.pool, &kinds, &payloads, &["slack".into()])
        .await
        .unwrap();
    sender
}

/// Contract §2.4: at error, with the instance.
#[tokio::test]
async fn one_that_is_not_taken_is_notify_failed() {
    let app = TestApp::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let sender = due_to(&app, address).await;
    let (sent, logs) = Logs::of(sender.deliver_once()).await;
    assert_eq!(sent.unwrap(), 1);
    let failed = events(&logs, "notify.failed");
    assert_eq!(failed.len(), 1);
    assert_eq!(
        (
            &failed[0]["level"],
            &failed[0]["instance_id"],
            &failed[0]["kind"]
        ),
        (&json!("ERROR"), &json!("i-1"), &json!("test"))
    );
    assert!(failed[0]["error"].is_string() && failed[0]["again_s"].is_u64());
}

/// One that takes a connection and says nothing must not keep a reconciler that stops, nor its lease.
#[tokio::test]
async fn a_silent_receiver_holds_no_stop_up() {
    let app = TestApp::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sender = due_to(&app, listener.local_addr().unwrap()).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(deliver_forever(sender, stop.clone()));
    let _silent = listener.accept().await.unwrap();
    let began = Instant::now();
    stop.cancel();
    running.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1));
}
