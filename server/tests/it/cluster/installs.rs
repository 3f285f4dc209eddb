//! The main job: every chart and definition, from a request to its removal.

use super::*;

#[tokio::test]
async fn every_shipped_chart_becomes_ready_and_leaves_nothing() {
    let app = with_worker().await;
    let member = app.client("member");
    let mut ids = vec![];
    for (service_type, parameters) in [
        ("postgres", json!({"storage_gb": 3})),
        ("cache", json!({"memory_mb": 64})),
        (
            "web",
            json!({"image": "ghcr.io/x/y:1", "replicas": 3, "env": {"A": "0123", "B": "1e5", "C": "on"}}),
        ),
    ] {
        ids.push(
            member
                .ask(service_type, &format!("my-{service_type}"), parameters)
                .await,
        );
    }
    let mut namespace = String::new();
    for id in &ids {
        let instance = app.wait(id, &["ready", "failed"]).await;
        assert_eq!(instance["state"], "ready", "{instance:#}");
        assert_eq!(
            (
                instance["readiness"]["verdict"].as_str(),
                instance["release"]["revision"].as_i64()
            ),
            (Some("complete"), Some(1)),
            "{instance:#}"
        );
        namespace = place(&instance).0;
    }
    let sts = kubectl(&[
        "-n",
        &namespace,
        "get",
        "statefulset,pvc",
        "-o",
        "jsonpath={.items[*].status.readyReplicas} {.items[*].status.phase}",
    ]);
    assert_eq!(sts.trim(), "1 Bound");
    let env = kubectl(&[
        "-n",
        &namespace,
        "get",
        "deploy",
        "-l",
        "app.kubernetes.io/name=web",
        "-o",
        "jsonpath={.items[0].spec.template.spec.containers[0].env}",
    ]);
    let env: Value = serde_json::from_str(&env).unwrap();
    assert_eq!(
        env,
        json!([{"name": "A", "value": "0123"}, {"name": "B", "value": "1e5"}, {"name": "C", "value": "on"}, {"name": "PORT", "value": "8080"}]),
        "C28: strings arrive as given"
    );
    for id in &ids {
        assert_eq!(
            member.delete(&format!("/api/v1/instances/{id}")).await.0,
            202
        );
    }
    for id in &ids {
        app.wait(id, &["deleted"]).await;
    }
    let left = kubectl(&[
        "-n",
        &namespace,
        "get",
        "all,pvc,secret,configmap",
        "-o",
        "name",
    ]);
    let left: Vec<&str> = left
        .lines()
        .filter(|l| *l != "configmap/kube-root-ca.crt")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_definition_is_applied_and_removed() {
    let app = with_worker().await;
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let controller = Controller {
        clients: clients().await,
        namespace: "polychrome-apps".into(),
        pace: Pace::default(),
    };
    tokio::spawn(controller.run(stop));
    let member = app.client("member");
    let id = member
        .ask(
            "web-service",
            "ws",
            json!({"image": "nginx:1", "port": 9000}),
        )
        .await;
    let (namespace, name) = place(&app.wait(&id, &["ready"]).await);
    let spec = kubectl(&[
        "-n",
        &namespace,
        "get",
        "svcdef",
        &name,
        "-o",
        "jsonpath={.spec.image} {.spec.port} {.spec.replicas} {.spec.owner}",
    ]);
    assert_eq!(spec, "nginx:1 9000 1 team:demo");
    // "Removed" is not said while a pod is still there.
    let of = format!("polychrome.dev/service-definition={name}");
    let hold = |finalizers: &str| {
        let patch = format!("{{\"metadata\":{{\"finalizers\":{finalizers}}}}}");
        let pods = ["-n", &namespace, "get", "pods", "-l", &of, "-o", "name"];
        let pod = kubectl(&pods).trim().to_owned();
        kubectl(&[
            "-n",
            &namespace,
            "patch",
            &pod,
            "--type=merge",
            "-p",
            &patch,
        ]);
    };
    hold("[\"example.com/hold\"]");
    member.delete(&format!("/api/v1/instances/{id}")).await;
    until(
        "the definition is gone",
        Duration::from_secs(60),
        async || !try_kubectl(&["-n", &namespace, "get", "svcdef", &name]).0,
    )
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(page["state"], "deleting", "{page:#}");
    hold("null");
    app.wait(&id, &["deleted"]).await;
    assert!(!try_kubectl(&["-n", &namespace, "get", "svcdef", &name]).0);
}

/// Whoever waits for an object that somebody has removed would wait until the deadline.
#[tokio::test]
async fn a_definition_that_is_removed_before_it_serves_is_applied_again() {
    let app = with_worker().await;
    let member = app.client("member");
    let id = member
        .ask(
            "web-service",
            "ws",
            json!({"image": "chaos.svcforge.dev/never-ready"}),
        )
        .await;
    let (namespace, name) = place(&member.get(&format!("/api/v1/instances/{id}")).await.1);
    let uid = || {
        try_kubectl(&[
            "-n",
            &namespace,
            "get",
            "svcdef",
            &name,
            "-o",
            "jsonpath={.metadata.uid}",
        ])
    };
    let waiting = async || {
        let (_, tasks) = member.get(&format!("/api/v1/instances/{id}/tasks")).await;
        let steps = tasks["items"][0]["steps"].as_array().unwrap().clone();
        steps
            .last()
            .is_some_and(|s| s["name"] == "Wait until it serves" && s["state"] == "running")
    };
    until("it waits", Duration::from_secs(30), waiting).await;
    let before = uid();
    assert!(before.0);
    kubectl(&["-n", &namespace, "delete", "svcdef", &name]);
    until(
        "it was applied again",
        Duration::from_secs(30),
        async || {
            let now = uid();
            now.0 && now.1 != before.1
        },
    )
    .await;
    let (_, events) = member.get(&format!("/api/v1/instances/{id}/tasks")).await;
    assert!(
        events.to_string().contains("before it served"),
        "{events:#}"
    );
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

#[tokio::test]
async fn credentials_survive_upgrade_and_repair_and_are_kept_nowhere_else() {
    let app = with_worker().await;
    let member = app.client("member");
    let id = member.ask("cache", "kept", json!({})).await;
    app.wait(&id, &["ready"]).await;
    let reveal = || async {
        let (status, shown) = member
            .get(&format!("/api/v1/instances/{id}/connection?reveal=true"))
            .await;
        assert_eq!(status, 200, "{shown:#}");
        shown["fields"]
            .as_array()
            .unwrap()
            .iter()
            .find(|f| f["name"] == "Password")
            .unwrap()["value"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let password = reveal().await;
    assert_eq!(password.len(), 32);
    let etag = member
        .request("GET", &format!("/api/v1/instances/{id}"))
        .send()
        .await
        .unwrap()
        .headers()["etag"]
        .clone();
    let (status, _) = member
        .send(
            member
                .request("PATCH", &format!("/api/v1/instances/{id}"))
                .header("if-match", etag)
                .json(&json!({"parameters": {"memory_mb": 256}})),
        )
        .await;
    assert_eq!(status, 200);
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while member.get(&format!("/api/v1/instances/{id}")).await.1["release"]["revision"] != 2
        || app.wait(&id, &["ready", "upgrading"]).await["state"] != "ready"
    {
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(reveal().await, password);
    // A canary in every table: found nowhere (A15).
    let tables: Vec<String> = sqlx::query_scalar("select relname::text from pg_class c join pg_namespace n on n.oid = relnamespace where nspname = 'public' and relkind = 'r'")
        .fetch_all(&app.db.pool)
        .await
        .unwrap();
    for table in tables {
        let found: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "select count(*) from {table} t where t::text like '%' || $1 || '%'"
        )))
        .bind(&password)
        .fetch_one(&app.db.pool)
        .await
        .unwrap();
        assert_eq!(found, 0, "{table}");
    }
}

#[tokio::test]
async fn twenty_at_once_all_ready_one_release_each() {
    let app = with_worker().await;
    let member = app.client("member");
    let ids = futures::future::join_all((0..20).map(|n| {
        let member = app.client("member");
        async move { member.ask("cache", &format!("many-{n}"), json!({})).await }
    }))
    .await;
    let mut namespace = String::new();
    for id in &ids {
        namespace = place(&app.wait(id, &["ready"]).await).0;
    }
    let versions = kubectl(&[
        "-n",
        &namespace,
        "get",
        "secret",
        "-l",
        "owner=helm",
        "-o",
        "jsonpath={.items[*].metadata.labels.version}",
    ]);
    assert_eq!(
        versions.split_whitespace().collect::<Vec<_>>(),
        vec!["1"; 20],
        "one revision each: never two Helms on one release"
    );
    drop(member);
}

#[tokio::test]
async fn a_chart_that_does_not_render_fails_with_helms_own_words() {
    let app = with_worker().await;
    publish_chart(&app, "1.0.0", "{{ fail \"size must be even\" }}").await;
    let member = app.client("member");
    let id = member.ask("x", "broken", json!({})).await;
    let failed = app.wait(&id, &["failed"]).await;
    assert!(
        failed["last_error"]
            .as_str()
            .unwrap()
            .contains("size must be even"),
        "{failed:#}"
    );
    let (_, tasks) = member.get(&format!("/api/v1/instances/{id}/tasks")).await;
    assert_eq!(
        tasks["items"][0]["attempt"], 1,
        "no second attempt can help"
    );
    let task = tasks["items"][0]["id"].as_str().unwrap();
    assert!(
        member
            .get(&format!("/api/v1/tasks/{task}/log"))
            .await
            .1
            .to_string()
            .contains("size must be even")
    );
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

/// C5: success means that the new spec serves, not that Helm said so.
#[tokio::test]
async fn c5_it_is_not_ready_before_its_workload_serves() {
    let app = TestApp::new().await;
    app.worker(provisioner(&app, Duration::from_secs(6)).await);
    // A pod that no node takes: it can never be ready.
    let stuck = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: \"{{ .Release.Name }}\"}\nspec:\n  selector: {matchLabels: {a: \"{{ .Release.Name }}\"}}\n  template:\n    metadata: {labels: {a: \"{{ .Release.Name }}\"}}\n    spec:\n      nodeSelector: {moon: \"yes\"}\n      securityContext: {runAsNonRoot: true, runAsUser: 1, seccompProfile: {type: RuntimeDefault}}\n      containers: [{name: a, image: a, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]\n";
    publish_chart(&app, "1.0.0", stuck).await;
    sqlx::query("create function one_attempt() returns trigger language plpgsql as $$ begin new.max_attempts := 1; return new; end $$").execute(&app.db.pool).await.unwrap();
    sqlx::query("create trigger one_attempt before insert on task for each row execute function one_attempt()").execute(&app.db.pool).await.unwrap();
    let id = app.client("member").ask("x", "stuck", json!({})).await;
    let failed = app.wait(&id, &["failed", "ready"]).await;
    let error = failed["last_error"].as_str().unwrap_or_default();
    assert!(
        failed["state"] == "failed"
            && error.contains("not serving")
            && error.contains("no node takes a pod"),
        "{failed:#}"
    );
    app.client("member")
        .delete(&format!("/api/v1/instances/{id}"))
        .await;
}
