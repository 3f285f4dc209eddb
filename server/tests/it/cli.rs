//! The command line's refusals: each names what to do.

use crate::support::{TestDb, cluster::svcforge_bin};
use std::process::Command;

fn run(args: &[&str], env: &[(&str, &str)]) -> (bool, String) {
    let out = Command::new(svcforge_bin())
        .args(args)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(env.iter().copied())
        .output()
        .unwrap();
    (
        out.status.success(),
        format!(
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        ),
    )
}

#[tokio::test]
async fn refusals_name_the_setting() {
    let db = TestDb::new().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dsn = [("SVCFORGE_PG_DSN", db.dsn.as_str())];
    let web = ["serve", "--roles", "web"];
    let site = tempfile::tempdir().unwrap();
    for file in ["style/site.css", "pkg/svcforge.js", "start.js"] {
        let file = site.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "").unwrap();
    }
    let site = site.path().to_str().unwrap();
    // A cluster that is named, but does not answer.
    let gone = tempfile::NamedTempFile::new().unwrap();
    let config = serde_json::json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
    std::fs::write(gone.path(), config.to_string()).unwrap();
    let dead = gone.path().to_str().unwrap();
    for (args, env, words) in [
        (&web[..], &[][..], "SVCFORGE_PG_DSN"),
        (
            &["migrate"][..],
            &[("SVCFORGE_PG_DSNN", "postgres://x")][..],
            "SVCFORGE_PG_DSN",
        ),
        (
            &web[..],
            &[("SVCFORGE_PG_DSN", "postgres://svcforge@127.0.0.1:1/x")][..],
            "cannot reach the Postgres",
        ),
        (&["serve"][..], &dsn[..], "SVCFORGE_KUBECONFIG"),
        (
            &["serve", "--kubeconfig", dead][..],
            &dsn[..],
            "the cluster cannot be reached",
        ),
        (
            &["serve", "--kubeconfig", "/nowhere"][..],
            &dsn[..],
            "/nowhere",
        ),
        (
            &[
                "serve", "--roles", "web", "--site", site, "--listen", &address,
            ][..],
            &dsn[..],
            "SVCFORGE_LISTEN",
        ),
        (
            &["serve", "--roles", "web", "--lease-seconds", "240"][..],
            &dsn[..],
            "SVCFORGE_LEASE_SECONDS (240) must exceed SVCFORGE_HELM_TIMEOUT_S (240)",
        ),
        (&web[..], &dsn[..], "SVCFORGE_SITE"),
        (&["catalog", "check", "/nowhere"][..], &[][..], "/nowhere"),
        (
            &["up", "--cluster", "simulated", "--dir", "/tmp"][..],
            &[("SVCFORGE_KUBECONFIG", "/x")][..],
            "exclude each other",
        ),
        (
            &["up", "--dir", "/proc/nowhere"][..],
            &[][..],
            "/proc/nowhere",
        ),
    ] {
        let (ok, said) = run(args, env);
        assert!(!ok && said.contains(words), "{args:?}: {said}");
    }
}

#[test]
fn crds_and_openapi_are_what_is_committed() {
    let committed: String = ["servicedefinitions", "workflows"]
        .iter()
        .map(|plural| {
            let file = format!(
                "{}/../deploy/crds/{plural}.yaml",
                env!("CARGO_MANIFEST_DIR")
            );
            format!("---\n{}\n", std::fs::read_to_string(file).unwrap().trim())
        })
        .collect();
    let (ok, made) = run(&["crd"], &[]);
    assert!(ok);
    let lines = |text: &str| -> Vec<String> {
        let kept = text.lines().filter(|l| !l.trim().is_empty());
        kept.map(str::to_owned).collect()
    };
    assert_eq!(
        lines(&made),
        lines(&committed),
        "run: svcforge crd --out deploy/crds"
    );
    let (ok, openapi) = run(&["openapi"], &[]);
    assert!(ok && openapi.contains("/api/v1/instances"));
}
