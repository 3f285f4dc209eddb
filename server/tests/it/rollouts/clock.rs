//! R8: rollouts across changes of the clock.

use super::*;

/// R8: a rollout across both changes of the clock, with halts, resumes and dying workers on the way: never more than the cap, nothing
/// outside its window, and everybody gets there. Time is the database's: a schema with a `now()` of its own stands first.
async fn across_a_change(from: &str, seed: u64) {
    use rand::{Rng, SeedableRng};
    let count = if std::env::var_os("SVCFORGE_LONG").is_some() {
        500
    } else {
        60
    };
    let windows = [
        "daily 02:00-03:00 Europe/Berlin",
        "daily 01:30-02:30 Europe/Berlin",
        "daily 23:30-00:30 Europe/Berlin",
        "daily 02:00-04:00 UTC",
    ];
    let names: Vec<(String, String)> = (0..count)
        .map(|i| (["alpha", "beta", "platform"][i % 3].into(), format!("s{i}")))
        .collect();
    let names: Vec<(&str, &str)> = names
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    let cap = 7;
    let mut f = Fleet::new(&names, json!({"max_in_flight": cap})).await;
    for (i, (_, name)) in names.iter().enumerate() {
        f.set_window(name, windows[i % windows.len()]).await;
    }
    let start: jiff::Timestamp = from.parse().unwrap();
    f.app.sql("create schema fake").await;
    f.app
        .sql("create table fake.offset_of (seconds double precision)")
        .await;
    f.app.sql("insert into fake.offset_of values (0)").await;
    f.app.sql("create function fake.now() returns timestamptz language sql stable as 'select pg_catalog.now() + make_interval(secs => (select seconds from fake.offset_of))'").await;
    let dsn = format!(
        "{}?options=-csearch_path%3Dfake,pg_catalog,public",
        f.app.db.dsn
    );
    let pool = svcforge::db::connect(&crate::support::db::settings(&dsn))
        .await
        .unwrap();
    f.r.cx.pool = pool.clone();
    let scripted = std::sync::Arc::new(svcforge::provision::scripted::Scripted::new(
        Duration::from_millis(15),
    ));
    let mut worker = f.app.worker_on(pool.clone(), scripted.clone());
    let mut dice = rand::rngs::StdRng::seed_from_u64(seed);
    let admin = f.app.client("admin");
    let (mut done, mut halted) = (std::collections::BTreeSet::new(), false);
    let windows_of: BTreeMap<String, svcforge_app::domain::Window> = names
        .iter()
        .enumerate()
        .map(|(i, (_, n))| {
            (
                (*n).to_owned(),
                svcforge_app::domain::Window::parse(windows[i % windows.len()]).unwrap(),
            )
        })
        .collect();
    for step in 0..600 {
        let at = start + jiff::SignedDuration::from_mins(12 * step);
        sqlx::query("update fake.offset_of set seconds = extract(epoch from $1::timestamptz - pg_catalog.now())").bind(jiff_sqlx::ToSqlx::to_sqlx(at)).execute(&f.app.db.pool).await.unwrap();
        match dice.random_range(0..8) {
            0 => {
                halted = !halted;
                admin
                    .post(
                        &format!(
                            "/api/v1/rollouts/cache/{}",
                            if halted { "halt" } else { "resume" }
                        ),
                        json!({"reason": "the test"}),
                    )
                    .await;
            }
            1 => {
                worker.cancel();
                worker = f.app.worker_on(pool.clone(), scripted.clone());
            }
            _ => {}
        }
        let before = done.len();
        // What started may finish.
        let started: Vec<String> = sqlx::query_scalar("select i.name from task k join instance i on i.id = k.instance_id where k.slot_since is not null").fetch_all(&f.app.db.pool).await.unwrap();
        f.r.tick_well().await;
        svcforge::queue::sweep_once(&pool, &f.app.timing)
            .await
            .unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let (flying, running): (i64, i64) = sqlx::query_as(
                "select (select count(*) from task where slot_since is not null), (select count(*) from task where state in ('ready', 'running', 'blocked'))",
            )
            .fetch_one(&f.app.db.pool)
            .await
            .unwrap();
            assert!(flying <= cap, "never more than {cap}: {flying}");
            if running == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
            assert!(std::time::Instant::now() < until);
        }
        let now: Vec<String> = sqlx::query_scalar("select i.name from instance i join entry_revision r on r.id = i.entry_revision_id where r.chart_version = '1.1.0'").fetch_all(&f.app.db.pool).await.unwrap();
        for name in now {
            if done.insert(name.clone()) {
                assert!(
                    windows_of[&name].is_open(at) || started.contains(&name),
                    "{name} moved at {at}, outside its window"
                );
            }
        }
        assert!(
            !halted || done.len() == before,
            "nothing starts while halted"
        );
        if done.len() == count {
            break;
        }
    }
    assert_eq!(
        done.len(),
        count,
        "every window opened, and everybody got there"
    );
    worker.cancel();
}

#[tokio::test]
async fn r8_across_the_spring_change() {
    across_a_change("2027-03-27T18:00:00Z", 1).await;
}

#[tokio::test]
async fn r8_across_the_autumn_change() {
    across_a_change("2027-10-30T18:00:00Z", 2).await;
}
