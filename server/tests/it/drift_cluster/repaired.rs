//! What is gone comes back; what was changed or replaced is held, and put back by a person's choice.

use super::*;

#[tokio::test]
async fn a_release_uninstalled_by_hand_comes_back_within_one_tick() {
    let (app, r, _) = with_cluster().await;
    let member = app.client("member");
    let id = member.ask("cache", "gone", json!({"memory_mb": 64})).await;
    let before = app.wait(&id, &["ready"]).await;
    r.tick_well().await;
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(page["drift"], "present");
    let (namespace, release) = place(&before);
    helm(&["uninstall", &release, "-n", &namespace]);
    let logs = r.tick_well().await;
    let told = events(&logs, "drift.release_missing");
    assert_eq!(
        (told.len(), told[0]["release"].as_str()),
        (1, Some(release.as_str()))
    );
    let after = app.settled(&id).await;
    assert_eq!(
        after["chart_version"], before["chart_version"],
        "its own revision"
    );
    assert_eq!(after["drift"], "present", "not what the sweep before saw");
    let labels = kubectl(&[
        "-n",
        &namespace,
        "get",
        "secret",
        "-l",
        &format!("owner=helm,name={release}"),
        "-o",
        "jsonpath={.items[*].metadata.labels.svcforge\\.dev/entry-revision}",
    ]);
    assert!(!labels.is_empty());
    let (_, timeline) = member.get(&format!("/api/v1/instances/{id}/events")).await;
    let told = timeline["items"]
        .as_array()
        .unwrap()
        .iter()
        .any(|e| e["message"].as_str().unwrap().contains("drift: release"));
    assert!(told, "{timeline:#}");
    assert!(events(&r.tick_well().await, "drift.release_missing").is_empty());
}

#[tokio::test]
async fn an_upgrade_by_hand_is_changed_held_and_put_back_by_a_persons_choice() {
    let (app, r, _) = with_cluster().await;
    let member = app.client("member");
    let id = member
        .ask("cache", "touched", json!({"memory_mb": 64}))
        .await;
    let before = app.wait(&id, &["ready"]).await;
    let (namespace, release) = place(&before);
    let chart = crate::support::app::shipped().join("cache/chart");
    helm(&[
        "upgrade",
        &release,
        chart.to_str().unwrap(),
        "-n",
        &namespace,
        "--reuse-values",
        "--set",
        "memoryMb=32",
    ]);
    let logs = r.tick_well().await;
    assert_eq!(events(&logs, "drift.changed").len(), 1);
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(page["drift"], "changed");
    assert!(
        page["hold"].as_str().unwrap().contains("revision 2"),
        "{page}"
    );
    r.tick_well().await;
    assert!(
        app.open_tasks(id.parse().unwrap()).await.is_empty(),
        "it is held, and nothing fights"
    );
    let page = put_back(&app, &r, &id).await;
    assert_eq!(page["release"]["revision"], 3);
    let memory = kubectl(&["-n", &namespace, "get", "deploy,sts", "-o", "yaml"]);
    assert!(memory.contains("64"), "what was asked is there again");
}

/// Uninstalled and installed again by hand, its numbers begin anew: it is not the release that was there. It can be put back, and it
/// cannot be accepted.
#[tokio::test]
async fn a_release_that_somebody_replaced_is_put_back_and_never_accepted() {
    let (app, r, _) = with_cluster().await;
    let member = app.client("member");
    let id = member
        .ask("cache", "replaced", json!({"memory_mb": 64}))
        .await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    let chart = crate::support::app::shipped().join("cache/chart");
    helm(&["uninstall", &release, "-n", &namespace]);
    helm(&[
        "install",
        &release,
        chart.to_str().unwrap(),
        "-n",
        &namespace,
        "--set",
        "memoryMb=32,credentials.secretName=x",
    ]);
    let logs = r.tick_well().await;
    assert_eq!(events(&logs, "drift.changed").len(), 1, "{logs:#?}");
    assert!(events(&logs, "drift.release_missing").is_empty());
    let drift = format!("/api/v1/instances/{id}/drift");
    let (status, body) = member.post(&drift, json!({"choice": "accept"})).await;
    assert_eq!(status, 409, "{body}");
    let page = put_back(&app, &r, &id).await;
    assert_eq!(page["release"]["revision"], 2);
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

/// The same of a definition: what a person made in its place, and what they added, is gone after it.
#[tokio::test]
async fn a_definition_that_somebody_replaced_is_put_back() {
    let (app, r, _) = with_cluster().await;
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    tokio::spawn(controller().await.run(stop));
    let member = app.client("member");
    let asked = json!({"image": "nginx:1", "env": {"A": "1"}});
    let id = member.ask("web-service", "replaced-too", asked).await;
    let (namespace, name) = place(&app.wait(&id, &["ready"]).await);
    kubectl(&["-n", &namespace, "delete", "svcdef", &name]);
    apply(&[
        json!({"apiVersion": "polychrome.dev/v1alpha1", "kind": "ServiceDefinition", "metadata": {"name": name, "namespace": namespace},
               "spec": {"image": "nginx:2", "env": {"A": "2", "MINE": "x"}, "description": "mine"}}),
    ]);
    let logs = r.tick_well().await;
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(events(&logs, "drift.changed").len(), 1, "{page:#}");
    put_back(&app, &r, &id).await;
    let read = || -> Value {
        let found = kubectl(&["-n", &namespace, "get", "svcdef", &name, "-o", "json"]);
        serde_json::from_str(&found).unwrap()
    };
    let mut found = read();
    assert_eq!(
        json!([
            found["spec"]["image"],
            found["spec"]["env"],
            found["spec"]["description"],
            found["metadata"]["labels"]["svcforge.dev/instance"]
        ]),
        json!(["nginx:1", {"A": "1"}, null, id])
    );
    // With its labels and in its first generation, as `kubectl replace --force` leaves it.
    found["spec"]["image"] = json!("nginx:2");
    for own in [
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "managedFields",
    ] {
        found["metadata"].as_object_mut().unwrap().remove(own);
    }
    kubectl(&["-n", &namespace, "delete", "svcdef", &name]);
    apply(&[found]);
    r.tick_well().await;
    assert_eq!(
        member.get(&format!("/api/v1/instances/{id}")).await.1["drift"],
        "changed"
    );
    put_back(&app, &r, &id).await;
    assert_eq!(read()["spec"]["image"], "nginx:1");
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

/// A person's own change of the settings ends what it was held for; the next one from outside is told again. And what somebody removes
/// in the foreground is no change, however long its pods take.
#[tokio::test]
async fn a_hold_ends_with_what_it_was_for_and_a_slow_removal_is_no_change() {
    let (app, r, _) = with_cluster().await;
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    tokio::spawn(controller().await.run(stop));
    let member = app.client("member");
    let id = member
        .ask("web-service", "edited", json!({"image": "nginx:1"}))
        .await;
    let (namespace, name) = place(&app.wait(&id, &["ready"]).await);
    app.settled(&id).await;
    let path = format!("/api/v1/instances/{id}");
    let look = async || member.get(&path).await.1;
    let edit = |patch: &str| {
        kubectl(&[
            "-n",
            &namespace,
            "patch",
            "svcdef",
            &name,
            "--type=merge",
            "-p",
            patch,
        ]);
    };
    let told = async || events(&r.tick_well().await, "drift.changed").len();
    edit(r#"{"spec":{"replicas":2}}"#);
    assert_eq!(told().await, 1);
    let held = look().await;
    assert!(held["hold"].is_string(), "{held:#}");
    let change = member
        .request("PATCH", &path)
        .header("if-match", format!("\"{}\"", held["version"]))
        .json(&json!({"parameters": {"image": "nginx:2"}}));
    let (status, body) = member.send(change).await;
    assert_eq!(status, 200, "{body:#}");
    app.settled(&id).await;
    let changed = look().await;
    assert_eq!(
        json!([
            changed["hold"],
            changed["drift"],
            changed["parameters"]["image"]
        ]),
        json!([null, "present", "nginx:2"])
    );
    assert_eq!(told().await, 0);
    edit(r#"{"spec":{"replicas":3}}"#);
    assert_eq!(told().await, 1, "the next one is told, too");
    put_back(&app, &r, &id).await;

    edit(r#"{"metadata":{"finalizers":["tests.svcforge.dev/slow"]}}"#);
    kubectl(&[
        "-n",
        &namespace,
        "delete",
        "svcdef",
        &name,
        "--cascade=foreground",
        "--wait=false",
    ]);
    assert_eq!(told().await, 0);
    let going = look().await;
    assert_eq!(
        json!([going["hold"], going["drift"]]),
        json!([null, "unknown"]),
        "{going:#}"
    );
    edit(r#"{"metadata":{"finalizers":null}}"#);
    until("it comes back", Duration::from_secs(30), async || {
        r.tick_well().await;
        try_kubectl(&["-n", &namespace, "get", "svcdef", &name]).0
            && look().await["state"] == "ready"
    })
    .await;
    member.delete(&path).await;
    app.wait(&id, &["deleted"]).await;
}

/// The watch makes it seconds; the tick remains the guarantee (here it comes once an hour).
#[tokio::test]
async fn the_watch_shows_drift_within_seconds() {
    let (app, r, releases) = with_cluster().await;
    let member = app.client("member");
    let id = member
        .ask("cache", "watched", json!({"memory_mb": 64}))
        .await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    let (_tell, leading) = watch::channel(Some(r.cx.leading));
    let stop = CancellationToken::new();
    let mut cx = r.cx.clone();
    cx.rules.interval = Duration::from_secs(3600);
    let running = tokio::spawn(reconcile::run(
        move |_| cx.clone(),
        Some(releases),
        leading,
        app.wake.changed.clone(),
        stop.clone(),
    ));
    until("the first tick", Duration::from_secs(20), async || {
        member.get(&format!("/api/v1/instances/{id}")).await.1["drift"] == "present"
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    helm(&["uninstall", &release, "-n", &namespace]);
    let began = std::time::Instant::now();
    until("seen by the watch", Duration::from_secs(10), async || {
        let page = member
            .get(&format!("/api/v1/instances/{id}/events"))
            .await
            .1;
        page["items"]
            .as_array()
            .unwrap()
            .iter()
            .any(|e| e["message"].as_str().unwrap().contains("drift: release"))
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(10));
    app.settled(&id).await;
    // The same for what is a definition.
    let controlling = tokio::spawn(controller().await.run(stop.clone()));
    let asked = json!({"image": "nginx:1"});
    let id = member.ask("web-service", "watched-too", asked).await;
    let (namespace, name) = place(&app.wait(&id, &["ready"]).await);
    kubectl(&["-n", &namespace, "delete", "svcdef", &name]);
    until("it is back", Duration::from_secs(10), async || {
        try_kubectl(&["-n", &namespace, "get", "svcdef", &name]).0
    })
    .await;
    app.settled(&id).await;
    controlling.abort();
    stop.cancel();
    running.await.unwrap();
}
