//! ServiceDefinitions: readiness, repair, refusals, faults.

use super::*;

/// §1.4: not ready until the new template serves, though the old replica still does; C25: one plain sentence says why.
#[tokio::test]
async fn a_new_image_is_not_ready_until_it_serves() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "ghcr.io/x:1"}));
    apps.ready("web").await;
    // Room for the old pod only: the new template's cannot be made.
    apps.k(&["create", "quota", "tight", "--hard=pods=1"]);
    until("the quota counts", SOON, async || {
        apps.k(&[
            "get",
            "quota",
            "tight",
            "-o",
            "jsonpath={.status.used.pods}",
        ]) == "1"
    })
    .await;
    apps.define("web", json!({"image": "ghcr.io/x:2"}));
    let held = apps
        .until("web", "refused by the quota", |s| s["phase"] == "Failed")
        .await;
    assert_eq!(
        (
            &held["ready"],
            &held["availableReplicas"],
            &held["observedGeneration"]
        ),
        (&json!(false), &json!(1), &json!(2))
    );
    let message = held["message"].as_str().unwrap();
    assert!(
        message.contains("the namespace's quota is used up"),
        "{message}"
    );
    let condition = |s: &Value, kind: &str| {
        s["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["type"] == kind)
            .unwrap()["status"]
            .clone()
    };
    assert_eq!(
        [condition(&held, "Ready"), condition(&held, "Degraded")],
        [json!("False"), json!("True")]
    );
    apps.k(&["delete", "quota", "tight"]);
    let done = apps.ready("web").await;
    assert_eq!(
        (condition(&done, "Degraded"), &done["message"]),
        (json!("False"), &Value::Null)
    );
    let image = apps.k(&[
        "get",
        "pods",
        "-o",
        "jsonpath={.items[*].spec.containers[0].image}",
    ]);
    assert_eq!(image, "ghcr.io/x:2", "none of the old template is left");
}

#[tokio::test]
async fn scaled_to_zero_is_not_ready_and_says_so() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "x", "replicas": 0}));
    let status = apps
        .until("web", "seen", |s| s["observedGeneration"] == 1)
        .await;
    assert_eq!(
        (&status["ready"], &status["phase"], &status["message"]),
        (&json!(false), &json!("Pending"), &json!("scaled to zero"))
    );
    apps.define("web", json!({"image": "x", "replicas": 2}));
    assert_eq!(apps.ready("web").await["availableReplicas"], 2);
    apps.define("web", json!({"image": "x", "replicas": 0}));
    apps.until("web", "at zero", |s| {
        s["message"] == "scaled to zero" && s["observedGeneration"] == 3
    })
    .await;
}

/// A chaos stage makes pods fail: `Failed` with the sentence (C25), until it is repaired.
#[tokio::test]
async fn a_pod_that_fails_says_why_until_it_is_repaired() {
    let apps = Apps::new().await;
    for (image, phase, sentence) in [
        (
            "chaos.svcforge.dev/crash-loop",
            "Failed",
            "0 of 1 pod ready: container app keeps crashing (exit code 2, 4 restarts)",
        ),
        (
            "chaos.svcforge.dev/out-of-memory",
            "Failed",
            "0 of 1 pod ready: container app runs out of memory and keeps being restarted",
        ),
        (
            "chaos.svcforge.dev/never-ready",
            "Pending",
            "0 of 1 pod ready: container app runs but does not answer its readiness probe yet",
        ),
    ] {
        let name = image.rsplit('/').next().unwrap();
        apps.define(name, json!({"image": image}));
        let status = apps
            .until(name, sentence, |s| s["message"] == sentence)
            .await;
        assert_eq!(
            (&status["phase"], &status["ready"]),
            (&json!(phase), &json!(false))
        );
        let shown = apps.k(&["get", "svcdef", name, "--no-headers"]);
        assert_eq!(
            shown.split_whitespace().collect::<Vec<_>>()[1..3],
            ["false", phase]
        );
        apps.define(name, json!({"image": "ghcr.io/x:1"}));
        apps.ready(name).await;
    }
    apps.define("web", json!({"image": "ghcr.io/x:1"}));
    apps.ready("web").await;
    // What cannot get better by itself is `Failed`.
    let pod = apps.k(&[
        "get",
        "pods",
        "-l",
        "app.kubernetes.io/name=web",
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ]);
    let broken = json!({"status": {
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "False"}],
        "containerStatuses": [{"name": "app", "image": "ghcr.io/x:1", "imageID": "", "ready": false, "restartCount": 0,
                               "state": {"waiting": {"reason": "ImagePullBackOff", "message": "unauthorized"}}}]}});
    apps.k(&[
        "patch",
        "pod",
        &pod,
        "--subresource=status",
        "-p",
        &broken.to_string(),
    ]);
    let failed = apps
        .until("web", "failed", |s| s["phase"] == "Failed")
        .await;
    assert_eq!(
        failed["message"],
        "0 of 1 pod ready: cannot pull image ghcr.io/x:1: the registry refuses access"
    );
    let shown = apps.k(&["get", "svcdef", "web", "--no-headers"]);
    assert_eq!(
        shown.split_whitespace().collect::<Vec<_>>()[1..3],
        ["false", "Failed"]
    );
}

/// No finalizer anywhere; garbage collection removes what was made.
#[tokio::test]
async fn deleted_means_that_the_children_go_and_nothing_holds_them() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "x"}));
    apps.ready("web").await;
    for (kind, name) in [("svcdef", "web"), ("deployment", "web"), ("service", "web")] {
        assert_eq!(
            apps.get(kind, name).unwrap()["metadata"]["finalizers"],
            Value::Null,
            "{kind}"
        );
    }
    apps.k(&["delete", "svcdef", "web", "--timeout=10s"]);
    until("the children are gone", SOON, async || {
        apps.get("deployment", "web").is_none() && apps.get("service", "web").is_none()
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(apps.get("deployment", "web").is_none(), "and stay gone");
}

/// A change to a child reconciles its parent at once: what a person changes or removes by hand is put back.
#[tokio::test]
async fn what_somebody_changes_by_hand_is_put_back() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "x", "env": {"A": "1"}}));
    apps.ready("web").await;
    apps.k(&["set", "image", "deployment/web", "app=evil"]);
    apps.k(&["label", "deployment", "web", "mine=yes"]);
    let image = || {
        apps.k(&[
            "get",
            "deployment",
            "web",
            "-o",
            "jsonpath={.spec.template.spec.containers[0].image}",
        ])
    };
    until("the image is put back", SOON, async || image() == "x").await;
    assert_eq!(
        apps.get("deployment", "web").unwrap()["metadata"]["labels"]["mine"],
        "yes",
        "what is not ours stays"
    );
    let orphan = r#"{"metadata": {"ownerReferences": null}}"#;
    apps.k(&["patch", "deployment", "web", "--type=merge", "-p", orphan]);
    until("it is owned again", SOON, async || {
        !apps.get("deployment", "web").unwrap()["metadata"]["ownerReferences"].is_null()
    })
    .await;
    // Whose it was is still known by the other of the two.
    apps.k(&[
        "label",
        "deployment",
        "web",
        "polychrome.dev/service-definition-",
    ]);
    let label = |o: Value| o["metadata"]["labels"]["polychrome.dev/service-definition"].clone();
    until("it is labelled again", SOON, async || {
        label(apps.get("deployment", "web").unwrap()) == "web"
    })
    .await;
    apps.k(&["delete", "service", "web"]);
    until("the service is back", SOON, async || {
        apps.get("service", "web").is_some()
    })
    .await;
    apps.k(&["delete", "deployment", "web"]);
    until("the deployment is back", SOON, async || {
        apps.get("deployment", "web").is_some()
    })
    .await;
    // What leaves the spec leaves the Deployment.
    apps.define("web", json!({"image": "x", "env": {}}));
    until("A is gone", SOON, async || {
        apps.k(&[
            "get",
            "deployment",
            "web",
            "-o",
            "jsonpath={.spec.template.spec.containers[0].env[*].name}",
        ]) == "PORT"
    })
    .await;
}

/// C26, C27: refused before anything is written, with the field's path; odd names that are allowed are applied exactly.
#[tokio::test]
async fn what_could_not_be_honoured_is_refused_at_the_door() {
    let apps = Apps::new().await;
    for (name, spec, said) in [
        ("web", json!({}), "spec.image: Required value"),
        ("web", json!({"image": ""}), "spec.image"),
        ("web", json!({"image": " x"}), "spec.image"),
        ("web", json!({"image": "x", "port": 0}), "spec.port"),
        ("web", json!({"image": "x", "port": 65536}), "spec.port"),
        ("web", json!({"image": "x", "port": "http"}), "spec.port"),
        (
            "web",
            json!({"image": "x", "replicas": -1}),
            "spec.replicas",
        ),
        (
            "web",
            json!({"image": "x", "replicas": 3_000_000_000_i64}),
            "spec.replicas",
        ),
        ("web", json!({"image": "x", "env": {"": "v"}}), "spec.env"),
        (
            "web",
            json!({"image": "x", "env": {"A=B": "v"}}),
            "spec.env",
        ),
        ("web", json!({"image": "x", "env": {"A": 1}}), "spec.env.A"),
        ("1a", json!({"image": "x"}), "metadata.name"),
        ("a.b", json!({"image": "x"}), "metadata.name"),
        (&"a".repeat(64), json!({"image": "x"}), "metadata.name"),
        ("-x", json!({"image": "x"}), "metadata.name"),
    ] {
        let (ok, text) = apps.apply(&definition(name, spec.clone()));
        assert!(!ok && text.contains(said), "{name} {spec}: {text}");
    }
    let long = "a".repeat(63);
    apps.define(
        &long,
        json!({"image": "x", "env": {"1 odd.name": "", "PORT": "1"}}),
    );
    apps.ready(&long).await;
    let env =
        &apps.get("deployment", &long).unwrap()["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(
        *env,
        json!([{"name": "1 odd.name"}, {"name": "PORT", "value": "1"}])
    );
}

/// At rest nothing is written: no resourceVersion moves, no status is patched, however often it looks.
#[tokio::test]
async fn at_rest_nothing_moves() {
    let mut apps = Apps::bare(&kubeconfig());
    let proxy = HttpProxy::before(&kubeconfig()).await;
    let often = Pace {
        ready: Duration::from_secs(1),
        ..pace()
    };
    apps.control(proxied(&proxy).await, often);
    for n in 0..5 {
        apps.define(&format!("web-{n}"), json!({"image": "x"}));
    }
    for n in 0..5 {
        apps.ready(&format!("web-{n}")).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let versions = || {
        let of = "jsonpath={.items[*].metadata.resourceVersion}";
        apps.k(&["get", "svcdef,deployment,service", "-o", of])
    };
    let before = versions();
    let [patches, requests] =
        [&proxy.status_patches, &proxy.requests].map(|n| n.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(versions(), before);
    assert_eq!(before.split_whitespace().count(), 15);
    assert_eq!(
        proxy.status_patches.load(Ordering::Relaxed),
        patches,
        "no status was patched"
    );
    assert!(
        proxy.requests.load(Ordering::Relaxed) > requests,
        "though it looked"
    );
}

/// Two at once are harmless; a restart finds everything as it is.
#[tokio::test]
async fn two_controllers_at_once_do_no_harm() {
    let mut apps = Apps::new().await;
    let first = apps.running.take();
    apps.control(clients().await, pace());
    for n in 0..5 {
        apps.define(&format!("web-{n}"), json!({"image": "x"}));
    }
    for n in 0..5 {
        apps.ready(&format!("web-{n}")).await;
    }
    for n in 0..5 {
        let generation =
            apps.get("deployment", &format!("web-{n}")).unwrap()["metadata"]["generation"].clone();
        assert_eq!(generation, 1, "written once");
    }
    drop(first);
}

/// N7: an annotation stops it there; the status goes on and says so.
#[tokio::test]
async fn a_paused_definition_is_left_alone() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "x:1"}));
    apps.ready("web").await;
    apps.k(&[
        "annotate",
        "svcdef",
        "web",
        "svcforge.dev/paused=incident 7",
    ]);
    apps.until("web", "paused", |s| {
        s["message"]
            .as_str()
            .is_some_and(|m| m.contains("incident 7"))
    })
    .await;
    apps.k(&["scale", "deployment", "web", "--replicas=2"]);
    apps.k(&[
        "patch",
        "svcdef",
        "web",
        "--type=merge",
        "-p",
        "{\"spec\":{\"image\":\"x:2\"}}",
    ]);
    let held = apps
        .until("web", "of generation 2", |s| s["observedGeneration"] == 2)
        .await;
    assert_eq!(
        held["ready"], false,
        "the current spec does not serve: {held}"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    let deployment = apps.get("deployment", "web").unwrap();
    assert_eq!(
        (
            &deployment["spec"]["replicas"],
            &deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        ),
        (&json!(2), &json!("x:1"))
    );
    apps.k(&["annotate", "svcdef", "web", "svcforge.dev/paused-"]);
    until("it goes on", SOON, async || {
        let d = apps.get("deployment", "web").unwrap();
        d["spec"]["replicas"] == 1
            && d["spec"]["template"]["spec"]["containers"][0]["image"] == "x:2"
    })
    .await;
    apps.ready("web").await;
}

/// An earlier controller wrote the status by other means: its fields are taken over.
#[tokio::test]
async fn a_status_that_an_earlier_controller_wrote_is_taken_over() {
    let mut apps = Apps::bare(&kubeconfig());
    apps.define("web", json!({"image": "x"}));
    let old = json!({"status": {"ready": true, "phase": "Ready", "availableReplicas": 7, "message": "from before"}});
    apps.k(&[
        "patch",
        "svcdef",
        "web",
        "--subresource=status",
        "--type=merge",
        "--field-manager=polychrome.dev/controller",
        "-p",
        &old.to_string(),
    ]);
    apps.control(clients().await, pace());
    let status = apps
        .until("web", "taken over", |s| {
            s["ready"] == true && s["availableReplicas"] == 1
        })
        .await;
    assert_eq!(
        (&status["phase"], &status["observedGeneration"]),
        (&json!("Ready"), &json!(1))
    );
    assert_eq!(status["message"], Value::Null, "its words are gone, too");
}

/// One whose Deployment cannot be applied says so, and stops nobody else.
#[tokio::test]
async fn one_that_is_rejected_says_so_and_stops_nobody() {
    let apps = Apps::new().await;
    // Its selector cannot be changed any more.
    apps.k(&["create", "deployment", "taken", "--image=other"]);
    apps.define("taken", json!({"image": "x"}));
    apps.define("web", json!({"image": "x"}));
    apps.ready("web").await;
    let status = apps
        .until("taken", "rejected", |s| s["phase"] == "Failed")
        .await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("the API server refuses what it comes to")
            && message.contains("immutable"),
        "{message}"
    );
}

// --- R5: the watches ---------------------------------------------------------------------------------------------------------

/// Whatever the API does, it is no hot loop, and afterwards what changed meanwhile is applied.
#[tokio::test]
async fn r5_the_controller_outlives_its_api() {
    let mut apps = Apps::bare(&kubeconfig());
    let proxy = HttpProxy::before(&kubeconfig()).await;
    apps.control(proxied(&proxy).await, pace());
    apps.define("web", json!({"image": "x:0"}));
    apps.ready("web").await;
    for (n, fault) in [
        Http::Down,
        Http::Status(500),
        Http::Status(429),
        Http::Gone,
        Http::Broken,
        Http::Silent,
    ]
    .into_iter()
    .enumerate()
    {
        proxy.set(fault);
        let before = proxy.requests.load(Ordering::Relaxed);
        apps.define("web", json!({"image": format!("x:{}", n + 1)}));
        tokio::time::sleep(Duration::from_secs(3)).await;
        let asked = proxy.requests.load(Ordering::Relaxed) - before;
        assert!(asked < 90, "{fault:?}: {asked} requests in 3 s");
        proxy.set(Http::Pass);
        let generation = n + 2;
        until(
            &format!("after {fault:?} it goes on"),
            Duration::from_secs(60),
            async || {
                let s = apps.status("web");
                s["ready"] == true && s["observedGeneration"] == generation
            },
        )
        .await;
    }
    // Deleted while nobody could watch: the list afterwards does not show it, and the next look is minutes away.
    proxy.set(Http::Gone);
    tokio::time::sleep(Duration::from_secs(1)).await;
    apps.k(&["delete", "service,deployment", "web"]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.set(Http::Pass);
    until("what was deleted is back", SOON, async || {
        apps.get("service", "web").is_some() && apps.get("deployment", "web").is_some()
    })
    .await;
    apps.ready("web").await;
}
