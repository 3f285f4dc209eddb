//! What is not ours is not touched, and ours is found.

use super::*;

/// N1: a release, a namespace, a Secret of that name that is not ours is refused, its owner named, untouched.
#[tokio::test]
async fn n1_what_is_not_ours_is_not_touched() {
    let app = TestApp::new().await;
    let member = app.client("member");
    let id = member.ask("cache", "c", json!({})).await;
    let (namespace, release) = place(&member.get(&format!("/api/v1/instances/{id}")).await.1);
    kubectl(&["create", "namespace", &namespace]);
    app.worker(provisioner(&app, Duration::from_secs(30)).await);
    let failed = app.wait(&id, &["failed"]).await;
    let error = failed["last_error"].as_str().unwrap();
    assert!(
        error.contains(&format!("namespace {namespace} is not svcforge's"))
            && error.contains("not touched"),
        "{error}"
    );

    // The namespace becomes ours; now a release of that name belongs to a person.
    let installation = db::installation::load(&app.db.pool)
        .await
        .unwrap()
        .id
        .to_string();
    kubectl(&[
        "label",
        "namespace",
        &namespace,
        &format!("svcforge.dev/installation={installation}"),
    ]);
    let chart = shipped().join("web/chart");
    let helm = |args: &[&str]| {
        let out = std::process::Command::new(crate::support::cluster::helm_bin())
            .arg(format!(
                "--kubeconfig={}",
                crate::support::cluster::kubeconfig().display()
            ))
            .args(["-n", &namespace])
            .args(args)
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
    };
    helm(&[
        "install",
        &release,
        chart.to_str().unwrap(),
        "--set",
        "image=mine:1",
    ]);
    // The release's record and what its Deployment is asked to be; its status goes on moving by itself.
    let theirs = || {
        let record = kubectl(&[
            "-n",
            &namespace,
            "get",
            "secret",
            "-l",
            "owner=helm",
            "-o",
            "jsonpath={.items[*].metadata.resourceVersion}",
        ]);
        let asked = kubectl(&[
            "-n",
            &namespace,
            "get",
            "deploy",
            &release,
            "-o",
            "jsonpath={.metadata.uid} {.metadata.generation}",
        ]);
        (record, asked)
    };
    let before = theirs();
    member
        .post(&format!("/api/v1/instances/{id}/retry"), json!({}))
        .await;
    let until = std::time::Instant::now() + Duration::from_secs(20);
    let error = loop {
        let failed = app.wait(&id, &["failed"]).await;
        let error = failed["last_error"].as_str().unwrap().to_owned();
        if error.contains("release") || std::time::Instant::now() > until {
            break error;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    };
    assert!(
        error.contains(&format!("release {release}")) && error.contains("belongs to somebody else"),
        "{error}"
    );
    assert_eq!(before, theirs());
    // Nor is it removed with the instance.
    member.delete(&format!("/api/v1/instances/{id}")).await;
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !member.get(&format!("/api/v1/instances/{id}")).await.1["last_error"]
        .as_str()
        .unwrap_or_default()
        .contains("belongs to")
    {
        assert!(std::time::Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(try_kubectl(&["-n", &namespace, "get", "deploy", &release]).0);
}

/// N2: a database is bound to one cluster.
#[tokio::test]
async fn n2_another_cluster_is_refused() {
    let app = TestApp::new().await;
    let clients = clients().await;
    cluster::bind(&clients, &app.db.pool).await.unwrap();
    cluster::bind(&clients, &app.db.pool)
        .await
        .expect("the same one again");
    sqlx::query("update installation set cluster_uid = 'another'")
        .execute(&app.db.pool)
        .await
        .unwrap();
    let error = cluster::bind(&clients, &app.db.pool)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("belongs to another cluster"), "{error}");
}

/// N1 for volumes: a claim that only looks like the service's own stays.
#[tokio::test]
async fn a_persons_volume_with_a_similar_name_survives() {
    let app = with_worker().await;
    let member = app.client("member");
    let id = member.ask("postgres", "db", json!({})).await;
    let ready = app.wait(&id, &["ready"]).await;
    let (namespace, release) = place(&ready);
    let claim = ready["readiness"]["parts"].to_string();
    assert!(claim.contains("StatefulSet"), "{claim}");
    let mine = format!("backup-{release}-0");
    let file = tempfile::NamedTempFile::new().unwrap();
    let object = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": mine},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    fs::write(file.path(), object.to_string()).unwrap();
    kubectl(&[
        "-n",
        &namespace,
        "create",
        "-f",
        file.path().to_str().unwrap(),
    ]);
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
    assert_eq!(
        kubectl(&["-n", &namespace, "get", "pvc", "-o", "name"]).trim(),
        format!("persistentvolumeclaim/{mine}")
    );
}

/// What the chart says is to be kept does not hold a removal up.
#[tokio::test]
async fn an_object_that_helm_keeps_does_not_hold_a_removal_up() {
    let app = with_worker().await;
    publish_chart(
        &app,
        "1.0.0",
        &CONFIG.replace(
            "metadata: {",
            "metadata: {annotations: {helm.sh/resource-policy: keep}, ",
        ),
    )
    .await;
    let member = app.client("member");
    let id = member.ask("x", "kept", json!({})).await;
    let (namespace, release) = place(&app.wait(&id, &["ready"]).await);
    member.delete(&format!("/api/v1/instances/{id}")).await;
    app.wait(&id, &["deleted"]).await;
    assert!(try_kubectl(&["-n", &namespace, "get", "configmap", &release]).0);
    let (_, drift) = member.get("/api/v1/drift").await;
    let left = &drift["leftovers"];
    assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
    assert_eq!(
        (
            &left[0]["name"],
            &left[0]["instance"],
            &left[0]["keep_until"]
        ),
        (&json!(release), &json!(id), &json!(null))
    );
}

/// N2: Helm gets one context, whatever becomes of the file it came from.
#[test]
fn helms_kubeconfig_holds_one_cluster_only() {
    let dir = tempfile::tempdir().unwrap();
    let two = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "https://a"}}, {"name": "b", "cluster": {"server": "https://b"}}],
        "users": [{"name": "a", "user": {"token": "ta"}}, {"name": "b", "user": {"token": "tb"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}, {"name": "b", "context": {"cluster": "b", "user": "b"}}]});
    let named = dir.path().join("two.yaml");
    fs::write(&named, two.to_string()).unwrap();
    let settings = |context: Option<&str>| svcforge::config::Cluster {
        kubeconfig: Some(named.clone()),
        context: context.map(Into::into),
        in_cluster: false,
    };
    for (context, server, other) in [(None, "https://a", "tb"), (Some("b"), "https://b", "ta")] {
        let out = dir
            .path()
            .join(format!("out-{}", context.unwrap_or("current")));
        let api = cluster::write_for_helm(&settings(context), &out).unwrap();
        assert_eq!(api, server);
        let text = fs::read_to_string(&out).unwrap();
        assert!(text.contains(server) && !text.contains(other), "{text}");
    }
    let error = cluster::write_for_helm(&settings(Some("c")), &dir.path().join("c")).unwrap_err();
    assert!(error.to_string().contains("no context \"c\""), "{error}");
}
