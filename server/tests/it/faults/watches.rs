//! R5 and R6: watches that break, reconcilers that freeze.

use super::*;

/// The watches, too: ten seconds without an API are no hot loop, and afterwards they show again.
#[tokio::test]
async fn r5_watches_back_off_and_come_back() {
    let p = Proxied::new().await;
    let (_tell, leading) = watch::channel(Some(p.r.cx.leading));
    let stop = CancellationToken::new();
    let mut cx = p.r.cx.clone();
    cx.rules.interval = Duration::from_secs(3600);
    let running = tokio::spawn(reconcile::run(
        move |_| cx.clone(),
        Some(p.releases.clone()),
        leading,
        p.app.wake.changed.clone(),
        stop.clone(),
    ));
    tokio::time::sleep(Duration::from_secs(2)).await;
    for fault in [Http::Down, Http::Status(500), Http::Gone, Http::Broken] {
        p.proxy.set(fault);
        let before = p.proxy.requests.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(4)).await;
        let asked = p.proxy.requests.load(Ordering::Relaxed) - before;
        assert!(asked < 60, "{fault:?}: {asked} requests in 4 s");
        assert!(p.app.open_tasks(p.here.id).await.is_empty(), "{fault:?}");
    }
    p.proxy.set(Http::Pass);
    kubectl(&[
        "-n",
        &p.here.namespace,
        "delete",
        "secret",
        "-l",
        "owner=helm",
    ]);
    until(
        "the watch shows again",
        Duration::from_secs(60),
        async || p.app.open_tasks(p.here.id).await.len() == 1,
    )
    .await;
    stop.cancel();
    running.await.unwrap();
}

// --- R6 -------------------------------------------------------------------------------------------------------------------

fn reconciler(app: &TestApp) -> Running {
    Running(
        Command::new(svcforge_bin())
            .args([
                "reconcile",
                "--metrics-port",
                "0",
                "--reconcile-interval-s",
                "1",
                "--log",
                "warn",
            ])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("SVCFORGE_PG_DSN", &app.db.dsn)
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

/// R6 with real processes: the leader is frozen past its lease, the other takes over within 20 s; together they make one set of tasks.
#[tokio::test]
async fn r6_two_reconcilers_one_frozen() {
    let app = TestApp::new().await;
    let a = reconciler(&app);
    let expire = async |name: &str| {
        let one = app.make_ready("demo", name, None).await.id;
        sqlx::query("update instance set expires_at = now() where id = $1")
            .bind(one)
            .execute(&app.db.pool)
            .await
            .unwrap();
        one
    };
    let first = expire("first").await;
    until("the first leads", Duration::from_secs(20), async || {
        app.open_tasks(first).await.len() == 1
    })
    .await;
    let b = reconciler(&app);
    tokio::time::sleep(Duration::from_secs(2)).await;
    a.signal(Signal::SIGSTOP);
    let frozen = Instant::now();
    let mut ids = vec![first];
    for i in 0..20 {
        ids.push(expire(&format!("s{i}")).await);
    }
    until(
        "the follower takes over",
        Duration::from_secs(25),
        async || app.open_tasks(ids[20]).await.len() == 1,
    )
    .await;
    assert!(
        frozen.elapsed() < Duration::from_secs(21),
        "within 20 s: {:?}",
        frozen.elapsed()
    );
    if long() {
        tokio::time::sleep(Duration::from_secs(120).saturating_sub(frozen.elapsed())).await;
    }
    for i in 20..30 {
        ids.push(expire(&format!("s{i}")).await);
    }
    a.signal(Signal::SIGCONT);
    tokio::time::sleep(Duration::from_secs(4)).await;
    for id in &ids {
        assert_eq!(app.open_tasks(*id).await.len(), 1);
        let told: i64 = sqlx::query_scalar("select count(*) from instance_event where instance_id = $1 and kind = 'instance.expired'").bind(id).fetch_one(&app.db.pool).await.unwrap();
        assert_eq!(told, 1, "one set of tasks");
    }
    // A clean stop hands over within a second or so: the follower hears of it.
    b.signal(Signal::SIGTERM);
    let began = Instant::now();
    let last = expire("last").await;
    until("handed over", Duration::from_secs(5), async || {
        app.open_tasks(last).await.len() == 1
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(4));
}
