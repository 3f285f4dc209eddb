//! `/api/v1`: bad input, preconditions, repetition, pages.

use crate::support::TestApp;
use serde_json::{Value, json};
use std::time::Duration;

async fn counts(app: &TestApp) -> (i64, i64) {
    sqlx::query_as("select (select count(*) from instance), (select count(*) from task)")
        .fetch_one(&app.db.pool)
        .await
        .unwrap()
}

fn ask(service_type: &str, name: &str, parameters: Value) -> Value {
    json!({"team": "demo", "type": service_type, "name": name, "parameters": parameters})
}

#[tokio::test]
async fn bad_requests_name_the_field_and_write_nothing() {
    let app = TestApp::new().await;
    let member = app.client("member");
    member.ask("cache", "taken", json!({})).await;
    let before = counts(&app).await;
    let mut with_ttl = ask("cache", "x", json!({}));
    with_ttl["ttl_seconds"] = json!(0);
    let mut far = with_ttl.clone();
    far["ttl_seconds"] = json!(i64::MAX);
    let mut negative = with_ttl.clone();
    negative["ttl_seconds"] = json!(-1);
    let mut unknown = ask("cache", "x", json!({}));
    unknown["admin"] = json!(true);
    for (body, status, pointer) in [
        (ask("nope", "x", json!({})), 422, "/type"),
        (ask("web", "x", json!({})), 422, "/parameters/image"),
        (
            ask("web", "x", json!({"image": 7})),
            422,
            "/parameters/image",
        ),
        (
            ask("web", "x", json!({"image": "a", "port": 0})),
            422,
            "/parameters/port",
        ),
        (
            ask("web", "x", json!({"image": "a", "port": 65536})),
            422,
            "/parameters/port",
        ),
        (
            ask("web", "x", json!({"image": "--post-renderer=x"})),
            422,
            "/parameters/image",
        ),
        (
            ask("web", "x", json!({"image": "a", "env": {"A B": "x"}})),
            422,
            "/parameters/env",
        ),
        (
            ask("cache", "x", json!({"image.repository": "evil"})),
            422,
            "/parameters/image.repository",
        ),
        (
            ask("cache", "x", json!({"image": {"repository": "evil"}})),
            422,
            "/parameters/image",
        ),
        (ask("cache", "", json!({})), 422, "/name"),
        (ask("cache", "-x", json!({})), 422, "/name"),
        (ask("cache", "..", json!({})), 422, "/name"),
        (ask("cache", "Upper", json!({})), 422, "/name"),
        (ask("cache", &"a".repeat(41), json!({})), 422, "/name"),
        (ask("cache", "taken", json!({})), 409, "/name"),
        (
            json!({"team": "other", "type": "cache", "name": "x"}),
            422,
            "/team",
        ),
        (
            json!({"team": "demo", "type": "cache", "name": 5}),
            422,
            "/name",
        ),
        (with_ttl, 422, "/ttl_seconds"),
        (negative, 422, "/ttl_seconds"),
        (far, 422, "/ttl_seconds"),
        (unknown, 422, ""),
    ] {
        let (got, problem) = member.post("/api/v1/instances", body.clone()).await;
        assert_eq!(got, status, "{body}: {problem:#}");
        let pointers: Vec<&str> = problem["errors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["pointer"].as_str().unwrap())
            .collect();
        assert!(
            pointers.contains(&pointer) || (pointer.is_empty() && !pointers.is_empty()),
            "{body}: {problem:#}"
        );
        assert!(
            problem["request_id"].is_string()
                && problem["type"]
                    .as_str()
                    .unwrap()
                    .starts_with("urn:svcforge:problem:")
        );
    }
    assert_eq!(counts(&app).await, before, "nothing may be written");
}

#[tokio::test]
async fn what_cannot_be_read_is_a_problem_too() {
    let app = TestApp::new().await;
    let admin = app.client("admin");
    let raw = |body: Vec<u8>, kind: &'static str| {
        admin
            .request("POST", "/api/v1/instances")
            .header("content-type", kind)
            .body(body)
    };
    let deep = [
        br#"{"team":"demo","type":"cache","name":"x","parameters":{"a":"#.to_vec(),
        b"[".repeat(90_000),
        b"]".repeat(90_000),
        b"}}".to_vec(),
    ]
    .concat();
    for (request, status) in [
        (raw(b"{\"team\":".to_vec(), "application/json"), 400),
        (
            raw(
                br#"{"team":"demo","type":"cache","name":"x"} trailing"#.to_vec(),
                "application/json",
            ),
            400,
        ),
        (raw(vec![0xff, 0xfe], "application/json"), 400),
        (raw(deep, "application/json"), 400),
        (
            raw(b"team=demo".to_vec(), "application/x-www-form-urlencoded"),
            415,
        ),
        (raw(vec![b' '; 600_000], "application/json"), 413),
        (admin.request("GET", "/api/v1/nothing"), 404),
        (admin.request("PUT", "/api/v1/instances"), 405),
        (admin.request("GET", "/api/v1/instances/not-a-uuid"), 404),
        (admin.request("GET", "/api/v1/instances?limit=x"), 400),
        (admin.request("GET", "/api/v1/instances?cursor=!!"), 422),
        (
            admin.request("GET", "/api/v1/instances?state=sleeping"),
            422,
        ),
        (admin.request("GET", "/api/v1/instances?nope=1"), 400),
    ] {
        let response = request.send().await.unwrap();
        let kind = response.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        let (got, text) = (response.status().as_u16(), response.text().await.unwrap());
        assert_eq!(
            (got, kind.as_str()),
            (status, "application/problem+json"),
            "{text}"
        );
        assert!(
            serde_json::from_str::<Value>(&text).unwrap()["request_id"].is_string(),
            "{text}"
        );
    }
}

#[tokio::test]
async fn one_accepted_request_is_one_instance() {
    let app = TestApp::new().await;
    let member = app.client("member");
    let post = |body: Value, key: &str| {
        member
            .request("POST", "/api/v1/instances")
            .header("idempotency-key", key)
            .json(&body)
    };
    let all = futures::future::join_all(
        (0..20).map(|_| member.send(post(ask("cache", "once", json!({})), "k1"))),
    )
    .await;
    let ids: std::collections::BTreeSet<String> = all
        .iter()
        .map(|(status, body)| {
            assert_eq!(*status, 201, "{body:#}");
            body["id"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(counts(&app).await, (1, 1));
    let (status, problem) = member
        .send(post(ask("cache", "other", json!({})), "k1"))
        .await;
    assert_eq!(status, 409, "{problem:#}");
    let (status, _) = app
        .client("owner")
        .send(
            app.client("owner")
                .request("POST", "/api/v1/instances")
                .header("idempotency-key", "k1")
                .json(&ask("cache", "mine", json!({}))),
        )
        .await;
    assert_eq!(status, 201, "a key is its user's own");
}

#[tokio::test]
async fn changes_need_what_one_looked_at() {
    let app = TestApp::new().await;
    app.scripted(Duration::from_millis(10));
    let member = app.client("member");
    let id = member.ask("cache", "c", json!({})).await;
    app.wait(&id, &["ready"]).await;
    let path = format!("/api/v1/instances/{id}");
    let etag = member.request("GET", &path).send().await.unwrap().headers()["etag"]
        .to_str()
        .unwrap()
        .to_owned();
    let patch = |tag: Option<&str>, body: Value| {
        let request = member.request("PATCH", &path).json(&body);
        match tag {
            Some(tag) => request.header("if-match", tag),
            None => request,
        }
    };
    let bigger = json!({"parameters": {"memory_mb": 256}});
    assert_eq!(member.send(patch(None, bigger.clone())).await.0, 428);
    assert_eq!(
        member.send(patch(Some("\"999\""), bigger.clone())).await.0,
        412
    );
    assert_eq!(
        member
            .send(patch(
                Some(&etag),
                json!({"parameters": {"memory_mb": "x"}})
            ))
            .await
            .0,
        422
    );
    assert_eq!(
        member
            .send(patch(
                Some(&etag),
                json!({"expires_at": "2001-01-01T00:00:00Z"})
            ))
            .await
            .0,
        422
    );
    assert_eq!(member.send(patch(Some(&etag), bigger)).await.0, 200);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while member.get(&path).await.1["parameters"]["memory_mb"] != 256 {
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let now = member.get(&path).await.1;
    assert_eq!(
        member
            .send(member.request("DELETE", &path).header("if-match", etag))
            .await
            .0,
        412,
        "stale"
    );
    assert_eq!(member.delete(&format!("{path}?confirm=wrong")).await.0, 422);
    assert_eq!(
        member
            .delete(&format!("{path}?confirm={}", now["name"].as_str().unwrap()))
            .await
            .0,
        202
    );
    app.wait(&id, &["deleted"]).await;
    assert_eq!(member.delete(&path).await.0, 409, "gone already");
}

#[tokio::test]
async fn pages_neither_skip_nor_repeat_while_rows_come_in() {
    let app = TestApp::new().await;
    let member = app.client("member");
    for n in 0..7 {
        member.ask("cache", &format!("old-{n}"), json!({})).await;
    }
    let (mut seen, mut path, mut round) = (vec![], "/api/v1/instances?limit=3".to_owned(), 0);
    loop {
        let (_, page) = member.get(&path).await;
        seen.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|i| i["name"].as_str().unwrap().to_owned()),
        );
        member
            .ask("cache", &format!("new-{round}"), json!({}))
            .await;
        round += 1;
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/instances?limit=3&cursor={cursor}"),
            None => break,
        }
    }
    seen.retain(|n| n.starts_with("old"));
    assert_eq!(
        seen,
        (0..7).rev().map(|n| format!("old-{n}")).collect::<Vec<_>>()
    );
    let response = member
        .request("GET", "/api/v1/instances?limit=1&q=old")
        .send()
        .await
        .unwrap();
    let link = response.headers()["link"].to_str().unwrap();
    assert!(
        link.contains("q=old") && link.contains("cursor=") && link.ends_with("rel=\"next\""),
        "{link}"
    );
}

#[tokio::test]
async fn health_needs_no_sign_in_and_openapi_names_every_path() {
    let app = TestApp::new().await;
    let nobody = app.client("nobody");
    assert_eq!(nobody.get("/livez").await.0, 200);
    assert_eq!(nobody.get("/readyz").await.0, 200);
    assert_eq!(nobody.get("/openapi.json").await.0, 401);
    let (status, document) = app.client("viewer").get("/openapi.json").await;
    assert_eq!(status, 200);
    for path in [
        "/api/v1/instances",
        "/api/v1/instances/{id}",
        "/api/v1/catalog/{type}",
        "/api/v1/tasks/{id}/log",
        "/api/v1/stream",
    ] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    sqlx::query("truncate catalog_revision cascade")
        .execute(&app.db.pool)
        .await
        .unwrap();
    assert_eq!(nobody.get("/readyz").await.0, 503, "no catalog");
}

#[tokio::test]
async fn the_stream_tells_ids_and_kinds_never_data() {
    let app = TestApp::new().await;
    let member = app.client("member");
    let mut stream = member
        .request("GET", "/api/v1/stream")
        .send()
        .await
        .unwrap();
    let mut stranger = app
        .client("stranger")
        .request("GET", "/api/v1/stream")
        .send()
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let id = member.ask("cache", "streamed", json!({})).await;
    let mut text = String::new();
    while !text.contains(&id) {
        let chunk = tokio::time::timeout(Duration::from_secs(5), stream.chunk())
            .await
            .expect("in time")
            .unwrap()
            .unwrap();
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(
        text.contains("event: changed") && !text.contains("streamed"),
        "{text}"
    );
    let mut other = String::new();
    while let Ok(Ok(Some(chunk))) =
        tokio::time::timeout(Duration::from_millis(500), stranger.chunk()).await
    {
        other.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(!other.contains(&id), "not theirs: {other}");
}

#[tokio::test]
async fn u0000_is_refused_wherever_it_comes() {
    let app = TestApp::new().await;
    let member = app.client("member");
    for (status, (got, problem)) in [
        (400, member.get("/api/v1/instances?q=%00").await),
        (400, member.get("/api/v1/catalog/%00").await),
        (
            400,
            member
                .post(
                    "/api/v1/instances",
                    json!({"team": "a\u{0}", "type": "cache", "name": "x"}),
                )
                .await,
        ),
        (
            400,
            member
                .post(
                    "/api/v1/instances",
                    ask("web", "x", json!({"image": "a", "env": {"A": "\u{0}"}})),
                )
                .await,
        ),
    ] {
        assert_eq!(got, status, "{problem:#}");
        assert!(problem["request_id"].is_string());
    }
    assert_eq!(counts(&app).await, (0, 0));
}

#[tokio::test]
async fn two_changes_never_overwrite_each_other() {
    let app = TestApp::new().await;
    app.scripted(Duration::from_millis(400));
    let member = app.client("member");
    let id = member.ask("cache", "c", json!({})).await;
    app.wait(&id, &["ready"]).await;
    let path = format!("/api/v1/instances/{id}");
    let etag = member.request("GET", &path).send().await.unwrap().headers()["etag"].clone();
    let patch = |memory: i64| {
        member
            .request("PATCH", &path)
            .header("if-match", etag.clone())
            .json(&json!({"parameters": {"memory_mb": memory}}))
    };
    assert_eq!(member.send(patch(64)).await.0, 200);
    assert_eq!(
        member.send(patch(512)).await.0,
        412,
        "what one looked at is gone"
    );
    let now = member.request("GET", &path).send().await.unwrap().headers()["etag"].clone();
    let again = member
        .request("PATCH", &path)
        .header("if-match", now)
        .json(&json!({"parameters": {"memory_mb": 512}}));
    let (status, problem) = member.send(again).await;
    assert!(status == 409 || status == 412, "{problem:#}");
    assert_eq!(app.settled(&id).await["parameters"]["memory_mb"], 64);
}

#[tokio::test]
async fn many_deletes_at_once_do_not_wait_for_each_others_connection() {
    let app = TestApp::new().await;
    let member = app.client("member");
    let mut ids = vec![];
    for n in 0..30 {
        ids.push(member.ask("cache", &format!("c{n}"), json!({})).await);
    }
    let all = futures::future::join_all(ids.iter().map(|id| {
        let (client, path) = (app.client("member"), format!("/api/v1/instances/{id}"));
        async move { client.delete(&path).await.0 }
    }))
    .await;
    assert_eq!(all, vec![202; 30]);
}

#[tokio::test]
async fn a_stream_ends_when_its_listener_is_out() {
    let app = TestApp::new().await;
    let mut stream = app
        .client("viewer")
        .request("GET", "/api/v1/stream")
        .send()
        .await
        .unwrap();
    let member = app.client("member");
    tokio::time::sleep(Duration::from_millis(1200)).await;
    sqlx::query("update app_user set disabled_at = now() where name = 'viewer'")
        .execute(&app.db.pool)
        .await
        .unwrap();
    let id = member.ask("cache", "secret", json!({})).await;
    let mut text = String::new();
    while let Some(chunk) = tokio::time::timeout(Duration::from_secs(5), stream.chunk())
        .await
        .expect("it ends")
        .unwrap_or(None)
    {
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(!text.contains(&id), "{text}");
}

#[tokio::test]
async fn idle_sockets_lock_nobody_out() {
    let app = TestApp::new().await;
    let address = app.url.trim_start_matches("http://").to_owned();
    let mut idle = vec![];
    for _ in 0..200 {
        idle.push(tokio::net::TcpStream::connect(&address).await.unwrap());
    }
    assert_eq!(app.client("nobody").get("/livez").await.0, 200);
    // The header deadline ends them.
    let mut byte = [0];
    let end = tokio::time::timeout(
        Duration::from_secs(15),
        tokio::io::AsyncReadExt::read(&mut idle[0], &mut byte),
    )
    .await;
    assert!(
        matches!(end, Ok(Ok(0) | Err(_))),
        "an idle socket is closed: {end:?}"
    );
}

#[tokio::test]
async fn a_change_keeps_what_it_does_not_name_and_refuses_what_is_fixed() {
    let app = TestApp::new().await;
    app.scripted(Duration::from_millis(5));
    let member = app.client("member");
    let id = member.ask("postgres", "db", json!({"storage_gb": 2})).await;
    app.wait(&id, &["ready"]).await;
    let path = format!("/api/v1/instances/{id}");
    let etag = member.request("GET", &path).send().await.unwrap().headers()["etag"].clone();
    let patch = |body: Value| {
        member
            .request("PATCH", &path)
            .header("if-match", etag.clone())
            .json(&body)
    };
    let (status, problem) = member
        .send(patch(json!({"parameters": {"storage_gb": 9}})))
        .await;
    assert_eq!(
        (status, problem["errors"][0]["pointer"].as_str()),
        (422, Some("/parameters/storage_gb")),
        "{problem:#}"
    );
    assert_eq!(
        member
            .send(patch(json!({"parameters": {"max_connections": 200}})))
            .await
            .0,
        200
    );
    let until = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let parameters = member.get(&path).await.1["parameters"].clone();
        if parameters["max_connections"] == 200 {
            assert_eq!(parameters["storage_gb"], 2);
            break;
        }
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}
