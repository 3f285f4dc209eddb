//! R10: a clock that is wrong.

use super::*;

// --- R10 --------------------------------------------------------------------------------------------------------------------

/// A worker whose clock is an hour off: leases and windows read the database's. Needs libfaketime, so it runs with `--long` only.
#[tokio::test]
async fn r10_a_clock_that_is_wrong_moves_neither_leases_nor_windows() {
    let Ok(library) = std::env::var("SVCFORGE_TEST_FAKETIME") else {
        assert!(
            !long(),
            "SVCFORGE_TEST_FAKETIME is not set: run the tests by ./dev test --long"
        );
        return;
    };
    for offset in ["+1h", "-1h"] {
        let app = TestApp::new().await;
        let mut r = Reconciler::new(&app).await;
        // Helm's releases are not what this is about.
        r.cx.releases = None;
        let pool = &app.db.pool;
        let old = app.make_version("0.9.0", false, json!({})).await;
        let parked = app.make_ready("demo", "parked", Some(old)).await.id;
        app.make_version("9.0.0", true, json!({})).await;
        // Open for an hour, in two hours less than half: closed by Postgres' clock; open by one that is an hour or two ahead.
        sqlx::query("update instance set maintenance_window = 'daily ' || to_char(now() at time zone 'UTC' + interval '30 min', 'HH24:MI') || '-' || to_char(now() at time zone 'UTC' + interval '90 min', 'HH24:MI') where id = $1")
            .bind(parked)
            .execute(pool)
            .await
            .unwrap();
        r.tick_well().await;
        let opens = async || -> (String, f64) {
            sqlx::query_as("select state, extract(epoch from run_after - now())::float8 from task where instance_id = $1").bind(parked).fetch_one(pool).await.unwrap()
        };
        let (state, ahead) = opens().await;
        assert!(
            state == "parked" && (1700.0..=1800.0).contains(&ahead),
            "{state}, in {ahead} s"
        );
        let _worker = worker_with(&app, &[("LD_PRELOAD", &library), ("FAKETIME", offset)]);
        // Due before its window: whoever admits asks Postgres what time it is.
        sqlx::query("update task set run_after = now() where instance_id = $1")
            .bind(parked)
            .execute(pool)
            .await
            .unwrap();
        until("it is parked again", Duration::from_secs(30), async || {
            let (state, ahead) = opens().await;
            state == "parked" && ahead > 60.0
        })
        .await;
        let (_, ahead) = opens().await;
        assert!(
            (1600.0..=1800.0).contains(&ahead),
            "{offset}: opens in {ahead} s"
        );
        let id = app
            .client("member")
            .ask("postgres", "leased", json!({}))
            .await;
        let mut seen = 0;
        until("it is ready", Duration::from_secs(60), async || {
            let leases: Vec<(f64,)> = sqlx::query_as("select extract(epoch from lease_until - clock_timestamp())::float8 from task where state = 'running'").fetch_all(pool).await.unwrap();
            for (left,) in leases {
                assert!((0.0..=10.5).contains(&left), "{offset}: a lease of {left} s");
                seen += 1;
            }
            app.client("member").get(&format!("/api/v1/instances/{id}")).await.1["state"] == "ready"
        })
        .await;
        assert!(seen > 0, "no lease was seen");
        assert_eq!(opens().await.0, "parked");
    }
}
