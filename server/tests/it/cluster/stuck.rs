//! Helms that are stuck, killed or at work for somebody else.

use super::*;

/// C1, R2: Helm killed -9 in the middle leaves the release pending; the next attempt frees it and goes on, visibly.
#[tokio::test]
async fn c1_a_release_left_pending_is_recovered() {
    let app = TestApp::new().await;
    app.worker(provisioner(&app, Duration::from_secs(120)).await);
    publish_chart(&app, "1.0.0", SLOW).await;
    let member = app.client("member");
    let id = member.ask("x", "killed", json!({})).await;
    let (namespace, release) = place(&member.get(&format!("/api/v1/instances/{id}")).await.1);
    let status = || {
        try_kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            "-l",
            &format!("owner=helm,name={release}"),
            "-o",
            "jsonpath={.items[*].metadata.labels.status}",
        ])
        .1
    };
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !(status().contains("pending-install") && helms_of(&release).len() == 1) {
        assert!(std::time::Instant::now() < until, "{}", status());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for pid in helms_of(&release) {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
    }
    // From here on the hook may finish.
    let hook = format!("{release}-hook");
    let until = std::time::Instant::now() + Duration::from_secs(90);
    while member.get(&format!("/api/v1/instances/{id}")).await.1["state"] != "ready" {
        assert!(
            std::time::Instant::now() < until,
            "{:#}",
            member
                .get(&format!("/api/v1/instances/{id}/events"))
                .await
                .1
        );
        assert!(
            helms_of(&release).len() <= 1,
            "C4: one Helm per instance, ever"
        );
        try_kubectl(&[
            "-n",
            &namespace,
            "patch",
            "job",
            &hook,
            "-p",
            "{\"spec\":{\"suspend\":false}}",
        ]);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let events = member
        .get(&format!("/api/v1/instances/{id}/events"))
        .await
        .1
        .to_string();
    assert!(
        events.contains("release.recovered") && events.contains("pending-install"),
        "{events}"
    );
    assert_eq!(
        kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            "-l",
            &format!("owner=helm,name={release},status=deployed"),
            "-o",
            "name"
        ])
        .lines()
        .count(),
        1
    );
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

/// A pending revision that svcforge did not write is a person at work: waited for, said, untouched.
#[tokio::test]
async fn a_persons_own_helm_is_waited_for() {
    let app = TestApp::new().await;
    let stop = app.worker(provisioner(&app, Duration::from_secs(60)).await);
    publish_chart(&app, "1.0.0", CONFIG).await;
    let member = app.client("member");
    let id = member.ask("x", "busy", json!({})).await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    stop.cancel();
    let secret = format!("sh.helm.release.v1.{release}.v1");
    let mut copy: Value = serde_json::from_str(&kubectl(&[
        "-n", &namespace, "get", "secret", &secret, "-o", "json",
    ]))
    .unwrap();
    copy["metadata"] = json!({"name": format!("sh.helm.release.v1.{release}.v2"), "labels": copy["metadata"]["labels"]});
    copy["metadata"]["labels"]["version"] = json!("2");
    copy["metadata"]["labels"]["status"] = json!("pending-upgrade");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), copy.to_string()).unwrap();
    kubectl(&[
        "-n",
        &namespace,
        "create",
        "-f",
        file.path().to_str().unwrap(),
    ]);
    sqlx::query("update instance set state = 'provisioning' where id = $1::uuid")
        .bind(&id)
        .execute(&app.db.pool)
        .await
        .unwrap();
    sqlx::query("update instance set state = 'failed' where id = $1::uuid")
        .bind(&id)
        .execute(&app.db.pool)
        .await
        .unwrap();
    // Even when an attempt of ours had recorded that number: the label tells whose it is.
    sqlx::query(
        "update instance set release_revision = 2, release_token = 999999 where id = $1::uuid",
    )
    .bind(&id)
    .execute(&app.db.pool)
    .await
    .unwrap();
    app.worker(provisioner(&app, Duration::from_secs(60)).await);
    member
        .post(&format!("/api/v1/instances/{id}/retry"), json!({}))
        .await;
    let until = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let task = member.get(&format!("/api/v1/instances/{id}/tasks")).await.1["items"][0].clone();
        if task["waiting_for"].as_str() == Some("a person's own Helm to end") {
            break;
        }
        assert!(std::time::Instant::now() < until, "{task:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(
        kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            &format!("sh.helm.release.v1.{release}.v2"),
            "-o",
            "jsonpath={.metadata.labels.status}"
        ]),
        "pending-upgrade"
    );
}

/// R1 at full speed: the worker's process is killed -9 while Helm runs; no Helm outlives it, another worker ends the work.
#[tokio::test]
async fn r1_a_killed_worker_leaves_no_helm_and_the_instance_converges() {
    let app = TestApp::new().await;
    publish_chart(&app, "1.0.0", SLOW).await;
    let mut doomed = serve(&app, "worker", &kubeconfig())
        .args(["--helm-timeout-s", "120", "--log", "warn"])
        .spawn()
        .unwrap();
    let member = app.client("member");
    let id = member.ask("x", "doomed", json!({})).await;
    let (namespace, release) = place(&member.get(&format!("/api/v1/instances/{id}")).await.1);
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while helms_of(&release).is_empty()
        || !try_kubectl(&["-n", &namespace, "get", "job", &format!("{release}-hook")]).0
    {
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    doomed.kill().unwrap();
    doomed.wait().unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(25);
    while !helms_of(&release).is_empty() {
        assert!(
            std::time::Instant::now() < until,
            "a Helm outlived its worker"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // In fast time the lease is over soon; a worker of this process takes it up.
    sqlx::query("update task set lease_until = clock_timestamp() - interval '1 minute'")
        .execute(&app.db.pool)
        .await
        .unwrap();
    app.worker(provisioner(&app, Duration::from_secs(120)).await);
    let until = std::time::Instant::now() + Duration::from_secs(90);
    while member.get(&format!("/api/v1/instances/{id}")).await.1["state"] != "ready" {
        assert!(
            std::time::Instant::now() < until,
            "{:#}",
            member
                .get(&format!("/api/v1/instances/{id}/events"))
                .await
                .1
        );
        try_kubectl(&[
            "-n",
            &namespace,
            "patch",
            "job",
            &format!("{release}-hook"),
            "-p",
            "{\"spec\":{\"suspend\":false}}",
        ]);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
}

/// C3: when the first install fails there is no deployed release; trying again works all the same. C2: an upgrade whose hook times
/// out leaves an older `deployed` revision behind a newer failed one; the highest is the truth, and nobody imagines drift.
#[tokio::test]
async fn c2_c3_a_hook_that_times_out() {
    let app = TestApp::new().await;
    publish_chart(&app, "1.0.0", SLOW).await;
    app.worker(provisioner(&app, Duration::from_secs(4)).await);
    let member = app.client("member");
    let id = member.ask("x", "slow-hook", json!({})).await;
    let (namespace, release) = place(&member.get(&format!("/api/v1/instances/{id}")).await.1);
    let statuses = || {
        let text = kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            "-l",
            &format!("owner=helm,name={release}"),
            "--sort-by=.metadata.creationTimestamp",
            "-o",
            "jsonpath={.items[*].metadata.labels.status}",
        ]);
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let due = || {
        sqlx::query("update task set run_after = now() where state = 'parked'")
            .execute(&app.db.pool)
    };
    let let_go = || {
        let job = format!("{release}-hook");
        try_kubectl(&[
            "-n",
            &namespace,
            "patch",
            "job",
            &job,
            "-p",
            "{\"spec\":{\"suspend\":false}}",
        ]);
    };
    crate::support::proxy::until(
        "the first install fails",
        Duration::from_secs(60),
        async || {
            let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
            page["last_error"].is_string() && statuses().contains(&"failed".to_owned())
        },
    )
    .await;
    assert!(!statuses().contains(&"deployed".to_owned()));
    crate::support::proxy::until("trying again works", Duration::from_secs(90), async || {
        due().await.unwrap();
        let_go();
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "ready"
    })
    .await;
    assert_eq!(statuses().last().map(String::as_str), Some("deployed"));
    // The upgrade's hook times out for good.
    publish_chart(&app, "1.1.0", SLOW).await;
    let (status, body) = app
        .client("admin")
        .post(&format!("/api/v1/instances/{id}/upgrade"), json!({}))
        .await;
    assert_eq!(status, 202, "{body}");
    crate::support::proxy::until(
        "the upgrade fails for good",
        Duration::from_secs(120),
        async || {
            due().await.unwrap();
            member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "failed"
        },
    )
    .await;
    let left = statuses();
    assert!(
        left.contains(&"deployed".to_owned()) && left.last().map(String::as_str) == Some("failed"),
        "{left:?}"
    );
    let head = cluster::release::head(&clients().await, &namespace, &release)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(head.status, "failed", "the highest is the truth");
    // Back to what it ran: a rollback is an install of the older entry revision.
    let (status, _) = member
        .post(
            &format!("/api/v1/instances/{id}/rollback"),
            json!({"reason": "1.1.0 hangs"}),
        )
        .await;
    assert_eq!(status, 202);
    crate::support::proxy::until("rolled back", Duration::from_secs(90), async || {
        due().await.unwrap();
        let_go();
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "ready"
    })
    .await;
    let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
    assert_eq!(page["chart_version"], "1.0.0");
    assert!(
        page["hold"].as_str().unwrap().contains("1.1.0 hangs"),
        "{page}"
    );
}

/// Helm forgets a release though it could not delete all of it, when it cannot read an object at that moment: what is left goes all the
/// same. What Helm would have spared stays, is listed, and holds nothing up.
#[tokio::test]
async fn what_helm_has_forgotten_is_removed() {
    let app = with_worker().await;
    let member = app.client("member");
    let id = member
        .ask("cache", "forgotten", json!({"memory_mb": 64}))
        .await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    let record = format!("owner=helm,name={release}");
    kubectl(&["-n", &namespace, "delete", "secret", "-l", &record]);
    let theirs = "app.kubernetes.io/managed-by=kustomize";
    kubectl(&[
        "-n",
        &namespace,
        "label",
        "service",
        &release,
        "--overwrite",
        theirs,
    ]);
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
    let there = |kind: &str| try_kubectl(&["-n", &namespace, "get", kind, &release]).0;
    assert!(!there("deployment") && there("service"));
    let left: Vec<(String, String)> =
        sqlx::query_as("select kind, name from leftover where gone_at is null")
            .fetch_all(&app.db.pool)
            .await
            .unwrap();
    assert_eq!(left, [("Service".to_owned(), release.clone())]);
}

/// Of kinds that are not built in, too: "removed" means that nothing is left.
#[tokio::test]
async fn other_kinds_are_removed_and_waited_for() {
    let app = with_worker().await;
    let held = "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: \"{{ .Release.Name }}\", finalizers: [example.org/held]}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: \"{{ .Release.Name }}\"}\n";
    publish_chart(&app, "1.0.0", &format!("{CONFIG}---\n{held}")).await;
    let member = app.client("member");
    for forgotten in [false, true] {
        let id = member
            .ask("x", &format!("kinds-{forgotten}"), json!({}))
            .await;
        let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
        if forgotten {
            let record = format!("owner=helm,name={release}");
            kubectl(&["-n", &namespace, "delete", "secret", "-l", &record]);
        }
        member.delete(&format!("/api/v1/instances/{id}")).await;
        let lease = |more: &[&str]| {
            let args = [&["-n", &namespace, "get", "lease", &release][..], more].concat();
            try_kubectl(&args)
        };
        crate::support::proxy::until("it goes", Duration::from_secs(30), async || {
            let ending = ["-o", "jsonpath={.metadata.deletionTimestamp}"];
            !lease(&ending).1.is_empty() && !try_kubectl(&["get", "clusterrole", &release]).0
        })
        .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
        assert_eq!(page["state"], "deleting", "it is not removed yet");
        let free = r#"{"metadata": {"finalizers": null}}"#;
        kubectl(&[
            "-n",
            &namespace,
            "patch",
            "lease",
            &release,
            "--type=merge",
            "-p",
            free,
        ]);
        app.wait(&id, &["deleted"]).await;
        assert!(!lease(&[]).0);
    }
}
