//! What a crash of Postgres itself forgets, on a Postgres of the test's own.

use crate::support::{cluster::svcforge_bin, db::settings};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{os::unix::fs::PermissionsExt, time::Duration};
use svcforge::{
    db::{
        self,
        queue::{self, Claimed, Priority},
    },
    embedded::{Launcher, Postgres},
    ids::new_id,
};

const LEASE: Duration = Duration::from_secs(60);

async fn claim(pool: &sqlx::PgPool) -> Vec<Claimed> {
    let kinds = ["provision".into()];
    queue::claim(
        pool,
        new_id(),
        &kinds,
        4,
        Priority::Upgrade,
        LEASE,
        LEASE * 10,
    )
    .await
    .unwrap()
}

/// A claim does not wait for the disk. After a crash the same task goes to somebody else, and who holds the forgotten claim must not
/// pass for him.
#[tokio::test]
async fn a_claim_that_a_crash_forgets_shares_its_token_with_no_other() {
    svcforge::tls::install();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let launcher = Launcher::new(&svcforge_bin(), dir.path());
    let mut postgres = Postgres::start(&launcher, dir.path()).await.unwrap();
    let pool = db::connect(&settings(&postgres.dsn)).await.unwrap();
    db::migrate(&pool).await.unwrap();
    for statement in [
        "alter table task drop constraint task_instance_id_fkey",
        "insert into task (id, kind, instance_id, team_id, state, priority, run_after, max_attempts, payload, reason, requested_by, act)
         select gen_random_uuid(), 'provision', gen_random_uuid(), gen_random_uuid(), 'ready', 0, now(), 3, '{}', 'test', 'test', 'person_change' from generate_series(1, 4)",
        // So that nothing is written behind the test's back.
        "alter system set wal_writer_delay = '10s'",
        "select pg_reload_conf()",
        "checkpoint",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    let before = claim(&pool).await;
    let postmaster: String =
        sqlx::query_scalar("select split_part(pg_read_file('postmaster.pid'), E'\\n', 1)")
            .fetch_one(&pool)
            .await
            .unwrap();
    kill(Pid::from_raw(postmaster.parse().unwrap()), Signal::SIGQUIT).unwrap();
    postgres.stop();

    let mut postgres = Postgres::start(&launcher, dir.path()).await.unwrap();
    let pool = db::connect(&settings(&postgres.dsn)).await.unwrap();
    let after = claim(&pool).await;
    assert_eq!(
        (before.len(), after.len()),
        (4, 4),
        "the crash forgot the claims, and the tasks are there"
    );
    for forgotten in &before {
        let mut db = pool.acquire().await.unwrap();
        let held = queue::hold(&mut db, forgotten.id, forgotten.token);
        assert!(
            !held.await.unwrap(),
            "two hold {} by one token, {}",
            forgotten.id,
            forgotten.token
        );
        assert!(forgotten.token > 0, "fit for a label");
    }
    postgres.stop();
}
