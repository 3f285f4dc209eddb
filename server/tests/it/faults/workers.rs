//! R1 to R3: workers and Helms that are killed or frozen; a database that goes silent.

use super::*;

/// R1: workers are killed -9 at random moments of installs, changes and removals; never two Helms on one release, nothing is
/// repaired by hand, everything converges.
#[tokio::test]
async fn r1_workers_killed_over_and_over() {
    let app = TestApp::new().await;
    let mut dice = StdRng::seed_from_u64(20_261_201);
    let member = app.client("member");
    let mut ids = vec![];
    for i in 0..6 {
        ids.push(
            member
                .ask("cache", &format!("k{i}"), json!({"memory_mb": 64}))
                .await,
        );
    }
    let mut releases = vec![];
    for id in &ids {
        releases.push(place(&app, id).await.1);
    }
    let (stop, watched) = (CancellationToken::new(), releases.clone());
    let watching = {
        let stop = stop.clone();
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                for release in &watched {
                    let helms = helms_of(release);
                    assert!(helms.len() <= 1, "two Helms on {release}: {helms:?}");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    };
    let mut running = worker(&app);
    let kills = if long() { 100 } else { 12 };
    for n in 0..kills {
        tokio::time::sleep(Duration::from_millis(dice.random_range(150..2500))).await;
        running.0.kill().unwrap();
        running.0.wait().unwrap();
        running = worker(&app);
        // In between people go on: changes where something is ready.
        let id = &ids[n % ids.len()];
        let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
        if page["state"] == "ready" {
            let patch = member
                .request("PATCH", &format!("/api/v1/instances/{id}"))
                .header("if-match", format!("\"{}\"", page["version"]))
                .json(&json!({"parameters": {"memory_mb": 64 + n}}));
            member.send(patch).await;
        }
    }
    for id in &ids {
        until("converges", Duration::from_secs(150), async || {
            let page = member.get(&format!("/api/v1/instances/{id}")).await.1;
            assert_ne!(page["state"], "failed", "{page:#}");
            page["state"] == "ready" && app.open_tasks(id.parse().unwrap()).await.is_empty()
        })
        .await;
        let (namespace, release) = place(&app, id).await;
        let deployed = kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            "-l",
            &format!("owner=helm,name={release},status=deployed"),
            "-o",
            "name",
        ]);
        assert_eq!(deployed.lines().count(), 1, "{deployed}");
        member.delete(&format!("/api/v1/instances/{id}")).await;
    }
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(dice.random_range(100..1500))).await;
        running.0.kill().unwrap();
        running.0.wait().unwrap();
        running = worker(&app);
    }
    for id in &ids {
        until("removed", Duration::from_secs(150), async || {
            member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "deleted"
        })
        .await;
    }
    stop.cancel();
    watching.await.unwrap();
}

/// R2, C1: Helm itself is killed at random moments of upgrades and of removals: recovered every time, no data removed.
#[tokio::test]
async fn r2_helm_killed_over_and_over() {
    let app = TestApp::new().await;
    app.worker(provisioner(&app, Duration::from_secs(60)).await);
    let mut dice = StdRng::seed_from_u64(50);
    let member = app.client("member");
    let id = member
        .ask("postgres", "victim", json!({"storage_gb": 1}))
        .await;
    app.wait(&id, &["ready"]).await;
    let (namespace, release) = place(&app, &id).await;
    let claims = || {
        kubectl(&[
            "-n",
            &namespace,
            "get",
            "pvc",
            "-o",
            "jsonpath={.items[*].metadata.uid}",
        ])
    };
    let uid = claims();
    assert!(!uid.is_empty());
    let rounds = if long() { 50 } else { 6 };
    let mut killed = 0;
    for n in 0..rounds {
        let (_, page) = member.get(&format!("/api/v1/instances/{id}")).await;
        let patch = member
            .request("PATCH", &format!("/api/v1/instances/{id}"))
            .header("if-match", format!("\"{}\"", page["version"]))
            .json(&json!({"parameters": {"max_connections": 50 + n}}));
        let (status, body) = member.send(patch).await;
        assert_eq!(status, 200, "{body}");
        let wait = Duration::from_millis(dice.random_range(0..250));
        let began = Instant::now();
        while helms_of(&release).is_empty() && began.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(wait).await;
        for pid in helms_of(&release) {
            killed += usize::from(kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok());
        }
        // Its retry need not wait for the pause between attempts.
        until("recovered", Duration::from_secs(60), async || {
            sqlx::query("update task set run_after = now() where state = 'parked'")
                .execute(&app.db.pool)
                .await
                .unwrap();
            let page = member.get(&format!("/api/v1/instances/{id}")).await.1;
            page["state"] == "ready"
                && page["parameters"]["max_connections"] == 50 + n
                && app.open_tasks(id.parse().unwrap()).await.is_empty()
        })
        .await;
        assert_eq!(claims(), uid, "no data removed");
    }
    assert!(
        killed * 2 >= rounds as usize,
        "Helm was hit: {killed} of {rounds}"
    );
    // A removal that is cut off is finished, too.
    member.delete(&format!("/api/v1/instances/{id}")).await;
    let began = Instant::now();
    while helms_of(&release).is_empty() && began.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(60)).await;
    for pid in helms_of(&release) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    until("removed", Duration::from_secs(60), async || {
        sqlx::query("update task set run_after = now() where state = 'parked'")
            .execute(&app.db.pool)
            .await
            .unwrap();
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "deleted"
    })
    .await;
}

/// R3: a worker is stopped past its lease and continued: its late writes change nothing.
#[tokio::test]
async fn r3_a_worker_that_was_frozen_changes_nothing_afterwards() {
    let app = TestApp::new().await;
    let frozen = worker(&app);
    let member = app.client("member");
    let id = member
        .ask("cache", "frozen", json!({"memory_mb": 64}))
        .await;
    until("it has begun", Duration::from_secs(30), async || {
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "provisioning"
    })
    .await;
    frozen.signal(Signal::SIGSTOP);
    let other = worker(&app);
    until("taken over", Duration::from_secs(60), async || {
        member.get(&format!("/api/v1/instances/{id}")).await.1["state"] == "ready"
    })
    .await;
    let count = async || -> (i64, i64, i64) {
        sqlx::query_as("select (select count(*) from instance_event), (select count(*) from task_history), (select version from instance)")
            .fetch_one(&app.db.pool)
            .await
            .unwrap()
    };
    let before = count().await;
    frozen.signal(Signal::SIGCONT);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(count().await, before, "the fence held");
    drop(other);
}

// --- Postgres ---------------------------------------------------------------------------------------------------------------

/// Postgres is cut off and then silent, with work in flight: nothing is lost, nothing fails, everything ends by itself.
#[tokio::test]
async fn a_database_that_is_cut_and_silent_loses_no_work() {
    let app = TestApp::new().await;
    let url: url::Url = app.db.dsn.parse().unwrap();
    let target = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432))
        .parse()
        .unwrap();
    let proxy = TcpProxy::before(target).await;
    let mut dsn = url.clone();
    dsn.set_ip_host(proxy.address.ip()).unwrap();
    dsn.set_port(Some(proxy.address.port())).unwrap();
    let pool = db::connect(&crate::support::db::settings(dsn.as_str()))
        .await
        .unwrap();
    let stop = app.worker_on(
        pool,
        Arc::new(svcforge::provision::scripted::Scripted::new(
            Duration::from_millis(300),
        )),
    );
    let member = app.client("member");
    let mut ids = vec![];
    for i in 0..12 {
        ids.push(member.ask("cache", &format!("d{i}"), json!({})).await);
    }
    for wire in [Wire::Cut, Wire::Silent, Wire::Cut] {
        tokio::time::sleep(Duration::from_millis(250)).await;
        proxy.set(wire);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        proxy.set(Wire::Pass);
    }
    for id in &ids {
        let page = app.wait(id, &["ready", "failed"]).await;
        assert_eq!(page["state"], "ready", "{page:#}");
    }
    stop.cancel();
}
