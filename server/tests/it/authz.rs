//! Every path of the API × every kind of actor. A path without a line here is red.

use crate::support::TestApp;
use serde_json::json;
use std::collections::BTreeSet;

/// method, path, then what nobody, stranger, viewer, member and admin get.
const TABLE: &[(&str, &str, [u16; 5])] = &[
    ("get", "/api/v1/catalog", [401, 200, 200, 200, 200]),
    ("get", "/api/v1/catalog/{type}", [401, 200, 200, 200, 200]),
    ("get", "/api/v1/instances", [401, 200, 200, 200, 200]),
    ("post", "/api/v1/instances", [401, 422, 403, 201, 201]),
    ("get", "/api/v1/instances/{id}", [401, 404, 200, 200, 200]),
    ("patch", "/api/v1/instances/{id}", [401, 404, 428, 428, 428]),
    (
        "post",
        "/api/v1/instances/{id}/retry",
        [401, 404, 403, 409, 409],
    ),
    (
        "post",
        "/api/v1/instances/{id}/upgrade",
        [401, 404, 403, 409, 409],
    ),
    (
        "get",
        "/api/v1/instances/{id}/connection",
        [401, 404, 200, 200, 200],
    ),
    (
        "get",
        "/api/v1/instances/{id}/events",
        [401, 404, 200, 200, 200],
    ),
    (
        "get",
        "/api/v1/instances/{id}/tasks",
        [401, 404, 200, 200, 200],
    ),
    ("get", "/api/v1/tasks", [401, 200, 200, 200, 200]),
    ("get", "/api/v1/tasks/{id}", [401, 404, 200, 200, 200]),
    ("get", "/api/v1/tasks/{id}/log", [401, 404, 200, 200, 200]),
    (
        "post",
        "/api/v1/tasks/{id}/retry",
        [401, 404, 403, 409, 409],
    ),
    (
        "post",
        "/api/v1/tasks/{id}/cancel",
        [401, 404, 403, 202, 202],
    ),
    ("get", "/api/v1/teams", [401, 200, 200, 200, 200]),
    ("post", "/api/v1/teams", [401, 403, 403, 403, 201]),
    ("get", "/api/v1/me", [401, 200, 200, 200, 200]),
    ("get", "/api/v1/stream", [401, 200, 200, 200, 200]),
    (
        "delete",
        "/api/v1/instances/{id}",
        [401, 404, 403, 202, 202],
    ),
    (
        "post",
        "/api/v1/instances/{id}/rollback",
        [401, 404, 403, 409, 409],
    ),
    (
        "post",
        "/api/v1/instances/{id}/extend",
        [401, 404, 403, 202, 202],
    ),
    (
        "post",
        "/api/v1/instances/{id}/pause",
        [401, 404, 403, 200, 200],
    ),
    (
        "delete",
        "/api/v1/instances/{id}/pause",
        [401, 404, 403, 409, 409],
    ),
    (
        "post",
        "/api/v1/instances/{id}/drift",
        [401, 404, 403, 409, 409],
    ),
    ("get", "/api/v1/drift", [401, 200, 200, 200, 200]),
    (
        "post",
        "/api/v1/drift/breaker/release",
        [401, 403, 403, 403, 409],
    ),
    (
        "post",
        "/api/v1/drift/orphans/{id}/ignore",
        [401, 403, 403, 403, 404],
    ),
    (
        "post",
        "/api/v1/drift/orphans/{id}/adopt",
        [401, 403, 403, 403, 404],
    ),
    ("get", "/api/v1/definitions", [401, 200, 200, 200, 200]),
    ("get", "/api/v1/workflows", [401, 200, 200, 200, 200]),
    ("get", "/api/v1/rollouts", [401, 200, 200, 200, 200]),
    ("get", "/api/v1/rollouts/{type}", [401, 200, 200, 200, 200]),
    (
        "post",
        "/api/v1/rollouts/{type}/halt",
        [401, 403, 403, 403, 200],
    ),
    (
        "post",
        "/api/v1/rollouts/{type}/resume",
        [401, 403, 403, 403, 200],
    ),
    ("post", "/api/v1/rollouts/halt", [401, 403, 403, 403, 200]),
    ("post", "/api/v1/rollouts/resume", [401, 403, 403, 403, 200]),
    ("post", "/api/v1/pauses", [401, 403, 403, 403, 204]),
    ("delete", "/api/v1/pauses", [401, 403, 403, 403, 204]),
];

#[tokio::test]
async fn every_path_has_a_line_for_every_kind_of_actor() {
    let app = TestApp::new().await;
    let admin = app.client("admin");
    let (_, document) = admin.get("/openapi.json").await;
    let routes: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            methods
                .as_object()
                .unwrap()
                .keys()
                .map(move |m| (m.clone(), path.clone()))
        })
        .collect();
    let lines: BTreeSet<(String, String)> = TABLE
        .iter()
        .map(|(m, p, _)| ((*m).to_owned(), (*p).to_owned()))
        .collect();
    assert_eq!(
        routes, lines,
        "routes on the left, lines of the table on the right"
    );

    for (number, (method, path, expected)) in TABLE.iter().enumerate() {
        for (who, expected) in ["nobody", "stranger", "viewer", "member", "admin"]
            .into_iter()
            .zip(expected)
        {
            let id = admin
                .ask("cache", &format!("x{number}-{who}"), json!({}))
                .await;
            let (_, tasks) = admin.get(&format!("/api/v1/instances/{id}/tasks")).await;
            let task = tasks["items"][0]["id"].as_str().unwrap();
            let real = path
                .replace("/tasks/{id}", &format!("/tasks/{task}"))
                .replace("{id}", &id)
                .replace("{type}", "cache");
            let client = app.client(who);
            let body = match (*method, *path) {
                ("post", "/api/v1/teams") => json!({"slug": format!("s{number}"), "title": "T"}),
                ("post", "/api/v1/instances") => {
                    json!({"team": "demo", "type": "cache", "name": format!("y-{who}")})
                }
                (_, path) if path.ends_with("/pauses") => json!({"all": true, "reason": "a test"}),
                (_, path) if path.ends_with("adopt") => {
                    json!({"team": "demo", "type": "cache", "name": "adopted", "reason": "a test"})
                }
                (_, path) if path.ends_with("{id}/drift") => json!({"choice": "keep"}),
                (_, path) if path.ends_with("release") => {
                    json!({"list": "", "reason": "a test"})
                }
                ("post", path)
                    if ["rollback", "pause", "ignore", "halt", "resume"]
                        .iter()
                        .any(|word| path.ends_with(word)) =>
                {
                    json!({"reason": "a test"})
                }
                _ => json!({}),
            };
            let response = client
                .request(&method.to_uppercase(), &real)
                .json(&body)
                .send()
                .await
                .unwrap();
            assert_eq!(
                response.status().as_u16(),
                *expected,
                "{who}: {method} {path}"
            );
        }
    }
}

#[tokio::test]
async fn lists_hold_only_what_one_may_see() {
    let app = TestApp::new().await;
    app.client("member").ask("cache", "ours", json!({})).await;
    let names = |page: &serde_json::Value| page["items"].as_array().unwrap().len();
    assert_eq!(
        names(&app.client("viewer").get("/api/v1/instances").await.1),
        1
    );
    assert_eq!(
        names(&app.client("stranger").get("/api/v1/instances").await.1),
        0
    );
    assert_eq!(
        names(
            &app.client("stranger")
                .get("/api/v1/instances?team=demo")
                .await
                .1
        ),
        0
    );
    assert_eq!(
        names(&app.client("stranger").get("/api/v1/tasks").await.1),
        0
    );
    assert_eq!(
        names(&app.client("stranger").get("/api/v1/teams").await.1),
        0
    );
}

#[tokio::test]
async fn a_disabled_user_and_a_replaced_token_are_out_at_once() {
    let app = TestApp::new().await;
    let member = app.client("member");
    assert_eq!(member.get("/api/v1/me").await.0, 200);
    sqlx::query("update app_user set disabled_at = now() where name = 'member'")
        .execute(&app.db.pool)
        .await
        .unwrap();
    assert_eq!(member.get("/api/v1/me").await.0, 401);
    let owner = app.client("owner");
    sqlx::query("update api_token set revoked_at = now()")
        .execute(&app.db.pool)
        .await
        .unwrap();
    assert_eq!(owner.get("/api/v1/me").await.0, 401);
}

#[tokio::test]
async fn every_change_is_audited_with_its_request() {
    let app = TestApp::new().await;
    let member = app.client("member");
    let id = member.ask("cache", "audited", json!({})).await;
    member.delete(&format!("/api/v1/instances/{id}")).await;
    let rows: Vec<(String, String, String, Option<String>)> = sqlx::query_as(
        "select actor, via, action, request_id from audit where target_id = $1 order by id",
    )
    .bind(&id)
    .fetch_all(&app.db.pool)
    .await
    .unwrap();
    let brief: Vec<_> = rows
        .iter()
        .map(|(actor, via, action, _)| (actor.as_str(), via.as_str(), action.as_str()))
        .collect();
    assert_eq!(
        brief,
        [
            ("member", "token", "instance.request"),
            ("member", "token", "instance.delete")
        ]
    );
    assert!(rows.iter().all(|r| r.3.is_some()));
}

#[tokio::test]
async fn one_time_links_work_once_and_forms_must_come_from_our_pages() {
    let app = TestApp::new().await;
    let secret = svcforge::ids::new_secret();
    let mut db = app.db.pool.acquire().await.unwrap();
    let user = svcforge::db::user::ensure(&mut db, "member", false)
        .await
        .unwrap();
    svcforge::db::user::insert_link(&mut db, &svcforge::http::hash(&secret), user, 60.0)
        .await
        .unwrap();
    let http = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let link = format!("{}/signin/{secret}", app.url);
    for _ in 0..3 {
        assert_eq!(
            http.get(&link).send().await.unwrap().status(),
            200,
            "looking uses nothing up"
        );
    }
    for headers in [
        vec![],
        vec![("sec-fetch-site", "cross-site")],
        vec![("sec-fetch-site", "same-site")],
        vec![("origin", "null")],
    ] {
        let mut request = http.post(&link);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        assert_eq!(request.send().await.unwrap().status(), 403);
    }
    let own = |path: String| http.post(path).header("sec-fetch-site", "same-origin");
    let signed = own(link.clone()).send().await.unwrap();
    assert_eq!(signed.status(), 303);
    let cookie = signed.headers()["set-cookie"].to_str().unwrap().to_owned();
    for word in [
        "__Host-svcforge=",
        "HttpOnly",
        "SameSite=Lax",
        "Secure",
        "Path=/",
    ] {
        assert!(cookie.contains(word), "{cookie}");
    }
    assert_eq!(
        own(link).send().await.unwrap().status(),
        401,
        "a second time"
    );
    let cookie = cookie.split(';').next().unwrap();
    let me = |cookie: &str| {
        http.get(format!("{}/api/v1/me", app.url))
            .header("cookie", cookie.to_owned())
    };
    assert_eq!(me(cookie).send().await.unwrap().status(), 200);
    // A session needs the precondition that a token does not.
    let id = app.client("member").ask("cache", "mine", json!({})).await;
    let delete = http
        .delete(format!("{}/api/v1/instances/{id}", app.url))
        .header("cookie", cookie);
    assert_eq!(
        delete.try_clone().unwrap().send().await.unwrap().status(),
        403,
        "cross-site"
    );
    assert_eq!(
        delete
            .header("sec-fetch-site", "same-origin")
            .send()
            .await
            .unwrap()
            .status(),
        428
    );
    assert_eq!(
        own(format!("{}/signout", app.url))
            .header("cookie", cookie)
            .send()
            .await
            .unwrap()
            .status(),
        303
    );
    assert_eq!(me(cookie).send().await.unwrap().status(), 401, "signed out");
}

#[tokio::test]
async fn a_crafted_link_draws_no_button() {
    let app = TestApp::new().await;
    let nobody = app.client("nobody");
    for token in [
        "..%2Fservices%2F1%2Fupgrade",
        "x",
        &"a".repeat(44),
        "%22%3E%3Cscript%3E",
    ] {
        let (status, page) = nobody.get(&format!("/signin/{token}")).await;
        assert_eq!(status, 200);
        assert!(!page.as_str().unwrap().contains("<form"), "{token}: {page}");
    }
}
