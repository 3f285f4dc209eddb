//! A seeded mix of everything, and the invariants after it.

use super::*;

// --- a seeded mix -----------------------------------------------------------------------------------------------------------

/// People, ticks, faults and dying workers at random, from a seed; then quiet; then the invariants.
#[tokio::test]
async fn a_seeded_mix_keeps_the_invariants() {
    let seed = std::env::var("SVCFORGE_MIX_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(7);
    let span = Duration::from_secs(
        std::env::var("SVCFORGE_MIX_S")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or(15),
    );
    let app = TestApp::new().await;
    let r = Reconciler::new(&app).await;
    let mut dice = StdRng::seed_from_u64(seed);
    let scripted = Arc::new(svcforge::provision::scripted::Scripted::new(
        Duration::from_millis(40),
    ));
    let mut workers = [app.worker(scripted.clone()), app.worker(scripted.clone())];
    let (member, admin) = (app.client("member"), app.client("admin"));
    let mut ids: Vec<String> = vec![];
    let (mut asked, mut version, mut halted) = (0, 0, false);
    let began = Instant::now();
    while began.elapsed() < span {
        match dice.random_range(0..12) {
            0..=2 if ids.len() < 60 => {
                asked += 1;
                ids.push(member.ask("cache", &format!("m{asked}"), json!({})).await);
            }
            3 if !ids.is_empty() => {
                let id = &ids[dice.random_range(0..ids.len())];
                member.delete(&format!("/api/v1/instances/{id}")).await;
            }
            4 if !ids.is_empty() => {
                let id = &ids[dice.random_range(0..ids.len())];
                member
                    .post(
                        &format!(
                            "/api/v1/instances/{id}/{}",
                            ["upgrade", "retry"][dice.random_range(0..2)]
                        ),
                        json!({}),
                    )
                    .await;
            }
            5 => {
                let word = if halted { "resume" } else { "halt" };
                halted = !halted;
                admin
                    .post(
                        &format!("/api/v1/rollouts/cache/{word}"),
                        json!({"reason": "the mix"}),
                    )
                    .await;
            }
            6 if version < 20 => {
                version += 1;
                app.make_version(
                    &format!("1.{version}.0"),
                    true,
                    json!({"max_in_flight": 1 + version % 3}),
                )
                .await;
            }
            7 => {
                let fault = match dice.random_range(0..3) {
                    0 => svcforge::provision::Fault::Failed("the mix".into()),
                    1 => svcforge::provision::Fault::Rejected("the mix".into()),
                    _ => svcforge::provision::Fault::Outage {
                        what: "the mix".into(),
                        error: "away".into(),
                    },
                };
                scripted.fail_next(fault);
            }
            8 => {
                let n = dice.random_range(0..workers.len());
                workers[n].cancel();
                workers[n] = app.worker(scripted.clone());
            }
            9 if !ids.is_empty() => {
                let id = ids[dice.random_range(0..ids.len())]
                    .parse::<uuid::Uuid>()
                    .unwrap();
                sqlx::query("update instance set expires_at = now() where id = $1")
                    .bind(id)
                    .execute(&app.db.pool)
                    .await
                    .unwrap();
            }
            _ => {
                // The cluster shows whatever is ready, but for a release that somebody removed.
                let mut listing = svcforge::cluster::Listing::default();
                let rows: Vec<(String, String, Option<i32>)> = sqlx::query_as("select release_namespace, release_name, release_revision from instance where state <> 'deleted'").fetch_all(&app.db.pool).await.unwrap();
                for (namespace, name, revision) in rows {
                    if dice.random_range(0..15) > 0 {
                        listing.releases.insert(
                            (namespace, name),
                            crate::support::reconciler::seen(revision.unwrap_or(1), Some("me")),
                        );
                    }
                }
                *r.releases.listing.lock().unwrap() = listing;
                r.tick().await;
            }
        }
        let broken: i64 = sqlx::query_scalar(
            "select (select count(*) from (select instance_id from task where state = 'running' group by 1 having count(*) > 1) x)
                  + (select count(*) from task k join rollout ro on ro.service_type = k.rollout_type where k.slot_since is not null
                     group by ro.service_type, ro.max_in_flight having count(*) > 3 limit 1)",
        )
        .fetch_optional(&app.db.pool)
        .await
        .unwrap()
        .flatten()
        .unwrap_or(0);
        assert_eq!(broken, 0, "seed {seed}");
        tokio::time::sleep(Duration::from_millis(dice.random_range(0..25))).await;
    }
    // Quiet: nothing fails any more. Everything ends, and everything ready gets to the catalog's version.
    scripted.forget();
    until("quiet", Duration::from_secs(120), async || {
        let rows: Vec<(String, String, Option<i32>)> = sqlx::query_as("select release_namespace, release_name, release_revision from instance where state <> 'deleted'").fetch_all(&app.db.pool).await.unwrap();
        let mut listing = svcforge::cluster::Listing::default();
        for (namespace, name, revision) in rows {
            listing.releases.insert((namespace, name), crate::support::reconciler::seen(revision.unwrap_or(1), Some("me")));
        }
        *r.releases.listing.lock().unwrap() = listing;
        // A final failure of before may have halted it since.
        admin.post("/api/v1/rollouts/cache/resume", json!({"reason": "quiet"})).await;
        r.tick_well().await;
        sqlx::query("update task set run_after = now() where state = 'parked'").execute(&app.db.pool).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let left: i64 = sqlx::query_scalar(
            "select (select count(*) from task)
                  + (select count(*) from standing where state = 'ready' and target_id <> entry_revision_id and hold_kind is null)",
        )
        .fetch_one(&app.db.pool)
        .await
        .unwrap();
        left == 0
    })
    .await;
    let (states, instances): (Value, i64) = sqlx::query_as(
        "select (select jsonb_agg(distinct state) from instance), (select count(*) from instance)",
    )
    .fetch_one(&app.db.pool)
    .await
    .unwrap();
    assert_eq!(
        instances, asked,
        "one accepted request, one instance; seed {seed}"
    );
    for state in states.as_array().unwrap() {
        assert!(
            ["ready", "failed", "deleted"].contains(&state.as_str().unwrap()),
            "seed {seed}: {states}"
        );
    }
}
