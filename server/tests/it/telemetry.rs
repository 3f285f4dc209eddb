//! One trace from click or tick to Helm, at a real OTLP receiver; one webhook, signed. A whole `svcforge serve` does it.

use crate::support::{
    TestApp,
    cluster::{helm_bin, kubeconfig},
    process::{Running, serve},
    proxy::until,
};
use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest, trace::v1::Span,
};
use prost::Message;
use serde_json::{Value, json};
use std::{
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

#[derive(Clone, Default)]
struct Received {
    spans: Arc<Mutex<Vec<Span>>>,
    hooks: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
}

async fn receiver() -> (String, Received) {
    let received = Received::default();
    let router = Router::new()
        .route(
            "/v1/traces",
            post(async |State(r): State<Received>, body: Bytes| {
                let request = ExportTraceServiceRequest::decode(body).unwrap();
                let spans = request
                    .resource_spans
                    .into_iter()
                    .flat_map(|r| r.scope_spans)
                    .flat_map(|s| s.spans);
                r.spans.lock().unwrap().extend(spans);
            }),
        )
        .route(
            "/hook",
            post(
                async |State(r): State<Received>, headers: HeaderMap, body: Bytes| {
                    let mut hooks = r.hooks.lock().unwrap();
                    hooks.push((headers, body));
                    // The first try fails: it must come again.
                    if hooks.len() == 1 {
                        http::StatusCode::SERVICE_UNAVAILABLE
                    } else {
                        http::StatusCode::OK
                    }
                },
            ),
        )
        .with_state(received.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, received)
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn trace_of(parent: &str) -> Vec<u8> {
    data_encoding::HEXLOWER
        .decode(parent.split('-').nth(1).unwrap().as_bytes())
        .unwrap()
}

#[tokio::test]
async fn a_trace_joins_tick_task_and_helm_and_a_signed_webhook_arrives() {
    let app = TestApp::new().await;
    let (url, received) = receiver().await;
    let own = svcforge::db::installation::load(&app.db.pool)
        .await
        .unwrap()
        .id
        .to_string();
    let mut command = serve(&app, "worker,reconciler", &kubeconfig());
    command
        .args(["--helm-timeout-s", "60", "--reconcile-interval-s", "2"])
        .arg(format!("--own-namespace=svcf-own-{}", &own[24..]))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &url)
        .env("OTEL_BSP_SCHEDULE_DELAY", "200")
        .env("SVCFORGE_WEBHOOK_URL", format!("{url}/hook"))
        .env("SVCFORGE_WEBHOOK_SECRET", SECRET);
    let _serve = Running(command.spawn().unwrap());
    let member = app.client("member");
    // A click with a trace of its own: the task and its Helm belong to it.
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let ask = member.request("POST", "/api/v1/instances").header("traceparent", parent).json(&json!({"team": "demo", "type": "cache", "name": "traced", "parameters": {"memory_mb": 64}}));
    let (status, body) = member.send(ask).await;
    assert_eq!(status, 201, "{body}");
    let id = body["id"].as_str().unwrap();
    let instance = app.wait(id, &["ready"]).await;
    let names_of = |trace: &[u8]| -> std::collections::BTreeSet<String> {
        received
            .spans
            .lock()
            .unwrap()
            .iter()
            .filter(|s| s.trace_id == trace)
            .map(|s| s.name.clone())
            .collect()
    };
    let has = |trace: &[u8], names: &[&str]| {
        let found = names_of(trace);
        names.iter().all(|n| found.contains(*n))
    };
    let click = trace_of(parent);
    until(
        "click → task → Helm",
        Duration::from_secs(20),
        async || has(&click, &["task", "helm.run"]),
    )
    .await;
    until("a sweep has seen it", Duration::from_secs(20), async || {
        member.get(&format!("/api/v1/instances/{id}")).await.1["drift"] == "present"
    })
    .await;
    // Gone: the tick's trace goes on in the task.
    let out = Command::new(helm_bin())
        .args([
            "uninstall",
            instance["release"]["name"].as_str().unwrap(),
            "-n",
            instance["release"]["namespace"].as_str().unwrap(),
        ])
        .env("KUBECONFIG", kubeconfig())
        .output()
        .unwrap();
    assert!(out.status.success());
    let repair = async || -> Option<Value> {
        let (_, tasks) = member.get(&format!("/api/v1/instances/{id}/tasks")).await;
        tasks["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|t| t["reason"].as_str().unwrap().starts_with("drift:"))
            .cloned()
    };
    until("repaired", Duration::from_secs(40), async || {
        repair().await.is_some_and(|t| t["state"] == "succeeded")
    })
    .await;
    let task = repair().await.unwrap();
    let tick = trace_of(task["traceparent"].as_str().unwrap());
    until(
        "tick → task → Helm",
        Duration::from_secs(20),
        async || has(&tick, &["task", "helm.run", "helm.list"]),
    )
    .await;
    let names = names_of(&tick);
    assert!(
        names.contains("reconciler.tick") || names.contains("reconciler.between"),
        "{names:?}"
    );
    // The webhook came signed, again after its first failure, with the same id.
    let drift = |hooks: &[(HeaderMap, Bytes)]| {
        hooks
            .iter()
            .filter(|(_, b)| {
                serde_json::from_slice::<Value>(b).unwrap()["type"] == "drift.release_missing"
            })
            .count()
    };
    until("the webhook", Duration::from_secs(40), async || {
        drift(&received.hooks.lock().unwrap()) >= 2
    })
    .await;
    let hooks = received.hooks.lock().unwrap().clone();
    let webhook = standardwebhooks::Webhook::new(SECRET).unwrap();
    for (headers, body) in &hooks {
        webhook.verify(body, headers).unwrap();
        assert!(webhook.verify(b"{}", headers).is_err());
    }
    let body: Value = serde_json::from_slice(&hooks[1].1).unwrap();
    assert_eq!(
        json!([
            body["type"],
            body["data"]["instance_id"],
            body["data"]["team"]
        ]),
        json!(["drift.release_missing", id, "demo"])
    );
    assert_eq!(hooks[0].0["webhook-id"], hooks[1].0["webhook-id"]);
}
