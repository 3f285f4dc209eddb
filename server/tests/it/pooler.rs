//! Q12: behind PgBouncer in transaction mode, with the direct DSN for listening. With `--long` only.

use crate::support::{TestApp, db::settings, proxy::until};
use serde_json::json;
use std::{
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::Duration,
};
use svcforge::{db, embedded::free_port};

struct Bouncer {
    child: Child,
    dsn: String,
    _dir: tempfile::TempDir,
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bouncer(program: &str, direct: &str) -> Bouncer {
    let url = url::Url::parse(direct).unwrap();
    let (host, server_port) = (url.host_str().unwrap(), url.port().unwrap());
    let (user, password, database) = (
        url.username(),
        url.password().unwrap_or_default(),
        &url.path()[1..],
    );
    let port = free_port().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let users = file("users.txt", format!("\"{user}\" \"{password}\"\n"));
    let ini = file(
        "pgbouncer.ini",
        format!(
            "[databases]\n{database} = host={host} port={server_port} dbname={database} user={user} password={password}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = plain\nauth_file = {}\n\
             pool_mode = transaction\ndefault_pool_size = 4\nmax_prepared_statements = 200\nignore_startup_parameters = extra_float_digits,options\n",
            users.display()
        ),
    );
    // It refuses to run as root, and somebody else may not see root's cache.
    let own = dir.path().join("pgbouncer");
    std::fs::copy(program, &own).unwrap();
    for path in [dir.path(), &users, &ini, &own] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).ok();
    }
    let mut command = Command::new(&own);
    command
        .arg(&ini)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if nix::unistd::Uid::effective().is_root() {
        command.uid(65534).gid(65534);
    }
    Bouncer {
        child: command.spawn().unwrap(),
        dsn: format!("postgres://{user}:{password}@127.0.0.1:{port}/{database}"),
        _dir: dir,
    }
}

#[tokio::test]
async fn q12_the_queue_works_behind_a_transaction_pooler() {
    let Ok(program) = std::env::var("SVCFORGE_TEST_PGBOUNCER") else {
        return;
    };
    let app = TestApp::new().await;
    let pooler = bouncer(&program, &app.db.dsn);
    let mut pool = None;
    until("the pooler answers", Duration::from_secs(10), async || {
        pool = db::connect(&settings(&pooler.dsn)).await.ok();
        pool.is_some()
    })
    .await;
    let pool = pool.unwrap();
    app.worker_on(pool.clone(), app.scripted(Duration::from_millis(50)));
    let member = app.client("member");
    let mut ids = vec![];
    for n in 0..20 {
        ids.push(member.ask("cache", &format!("p{n}"), json!({})).await);
    }
    for id in &ids {
        app.wait(id, &["ready"]).await;
    }
    for id in &ids {
        assert!(member.delete(&format!("/api/v1/instances/{id}")).await.0 < 300);
    }
    for id in &ids {
        app.wait(id, &["deleted"]).await;
    }
    // Leading wants a connection of its own; each statement of a check may meet another server.
    let through = svcforge::lease::Candidate::new(&app.db.dsn)
        .try_lead(None)
        .await
        .unwrap();
    let leading = through.expect("nobody leads");
    let mut tx = leading.begin(&pool).await.unwrap();
    assert_eq!(
        db::now(&mut *tx).await.unwrap().as_second() / 60,
        svcforge::clock::now().as_second() / 60
    );
    tx.commit().await.unwrap();
}
