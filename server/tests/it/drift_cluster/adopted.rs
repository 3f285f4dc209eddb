//! What becomes ours, and what stays behind.

use super::*;

/// `svcforge adopt` labels a release made before the labels existed; one of somebody else's is refused.
#[tokio::test]
async fn adopt_labels_what_carries_no_label_and_nothing_else() {
    let app = TestApp::new().await;
    let clients = clients().await;
    cluster::bind(&clients, &app.db.pool).await.unwrap();
    let installation = db::installation::load(&app.db.pool)
        .await
        .unwrap()
        .id
        .to_string();
    let one = app.make_ready("demo", "old", None).await;
    try_kubectl(&["create", "namespace", &one.namespace]);
    apply(&[record(&one.namespace, &one.release, "4", "deployed")]);
    let adopt = || {
        Command::new(crate::support::cluster::svcforge_bin())
            .args([
                "adopt",
                "--reason",
                "made before labels",
                "--instance",
                &one.id.to_string(),
            ])
            .arg(format!("--kubeconfig={}", kubeconfig().display()))
            .env("SVCFORGE_PG_DSN", &app.db.dsn)
            .output()
            .unwrap()
    };
    let out = adopt();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let label = kubectl(&[
        "-n",
        &one.namespace,
        "get",
        "secret",
        "-l",
        &format!("name={}", one.release),
        "-o",
        "jsonpath={.items[0].metadata.labels.svcforge\\.dev/installation}",
    ]);
    assert_eq!(label, installation);
    let (revision, audited): (i32, i64) = sqlx::query_as("select release_revision, (select count(*) from audit where action = 'release.adopt') from instance where id = $1").bind(one.id).fetch_one(&app.db.pool).await.unwrap();
    assert_eq!((revision, audited), (4, 1));
    kubectl(&[
        "-n",
        &one.namespace,
        "label",
        "--overwrite",
        "secret",
        "-l",
        &format!("name={}", one.release),
        "svcforge.dev/installation=other",
    ]);
    let out = adopt();
    assert!(!out.status.success());
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("installation other"),
        "names the owner"
    );
    let _ = Candidate::new(&app.db.dsn);
}

/// An orphan left by a deleted row is adopted: another instance takes the release over, the data goes on.
#[tokio::test]
async fn an_orphan_is_adopted_by_an_instance_of_its_own() {
    let (app, r, _) = with_cluster().await;
    let member = app.client("member");
    let id = member.ask("cache", "lost", json!({"memory_mb": 64})).await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    // The row is gone, the release is not: as after a restore of the database.
    app.sql("alter table instance disable trigger instance_guard")
        .await;
    sqlx::query("update instance set state = 'deleted'")
        .execute(&app.db.pool)
        .await
        .unwrap();
    app.sql("alter table instance enable trigger instance_guard")
        .await;
    let logs = r.tick_well().await;
    assert_eq!(events(&logs, "drift.orphan_release").len(), 1);
    let admin = app.client("admin");
    let (_, page) = admin.get("/api/v1/drift").await;
    let orphan = page["orphans"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/drift/orphans/{orphan}/adopt");
    let ask = |team: &str| json!({"team": team, "type": "cache", "name": "found", "parameters": {"memory_mb": 96}, "reason": "it is ours"});
    app.make_team("other").await;
    let (status, body) = admin.post(&path, ask("other")).await;
    assert_eq!(
        (status, body["errors"][0]["pointer"].as_str()),
        (422, Some("/team"))
    );
    let (status, body) = admin.post(&path, ask("demo")).await;
    assert_eq!(status, 202, "{body}");
    let adopted = app
        .wait(body["id"].as_str().unwrap(), &["ready", "failed"])
        .await;
    assert_eq!(
        (adopted["state"].as_str(), place(&adopted)),
        (Some("ready"), (namespace, release)),
        "{adopted:#}"
    );
    assert_eq!(adopted["release"]["revision"], 2);
    assert!(events(&r.tick_well().await, "drift.orphan_release").is_empty());
    assert_eq!(admin.post(&path, ask("demo")).await.0, 409, "once");
}

/// Design §7 and C6: what `on_delete` keeps is listed with its age, for as long as it is there.
#[tokio::test]
async fn what_an_entry_keeps_is_listed_until_it_is_gone() {
    let (app, r, _) = with_cluster().await;
    let catalog = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(crate::support::app::shipped().join("postgres"))
        .arg(catalog.path())
        .status();
    assert!(copied.unwrap().success());
    let entry = catalog.path().join("postgres/entry.yaml");
    let text = std::fs::read_to_string(&entry).unwrap();
    assert!(text.contains("on_delete: wipe"));
    std::fs::write(
        &entry,
        text.replace("on_delete: wipe", "on_delete: keep 30d")
            .replace("chart_version: 1.0.0", "chart_version: 1.0.1"),
    )
    .unwrap();
    let chart = catalog.path().join("postgres/chart/Chart.yaml");
    let text = std::fs::read_to_string(&chart).unwrap();
    std::fs::write(&chart, text.replace("version: 1.0.0", "version: 1.0.1")).unwrap();
    let loaded = svcforge::catalog::load(catalog.path()).unwrap();
    svcforge::catalog::publish(&app.db.pool, &loaded)
        .await
        .unwrap();
    let member = app.client("member");
    let id = member.ask("postgres", "kept", json!({})).await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    let left = async || {
        let (_, drift) = member.get("/api/v1/drift").await;
        let left = drift["leftovers"].as_array().unwrap().clone();
        left.iter()
            .map(|l| {
                assert_eq!((&l["instance"], &l["team"]), (&json!(id), &json!("demo")));
                let day = |at: &Value| {
                    let at: jiff::Timestamp = at.as_str().unwrap().parse().unwrap();
                    at.as_second() / 86_400
                };
                assert_eq!(day(&l["keep_until"]) - day(&l["kept_at"]), 30);
                l["name"].as_str().unwrap().to_owned()
            })
            .collect::<BTreeSet<_>>()
    };
    assert!(left().await.is_empty(), "it lives");
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
    let (volume, secret) = (
        format!("data-{release}-0"),
        format!("{release}-credentials"),
    );
    r.tick_well().await;
    assert_eq!(left().await, [volume.clone(), secret.clone()].into());
    kubectl(&["-n", &namespace, "delete", "pvc", &volume]);
    r.tick_well().await;
    assert_eq!(left().await, [secret.clone()].into());
    // Another object of that name is another one.
    kubectl(&["-n", &namespace, "delete", "secret", &secret]);
    kubectl(&["-n", &namespace, "create", "secret", "generic", &secret]);
    r.tick_well().await;
    assert!(left().await.is_empty());
    let other = app.client("stranger").get("/api/v1/drift").await.1;
    assert_eq!(other["leftovers"], json!([]), "another team's");
}
