//! What a listing shows, and when it is not believed.

use super::*;

/// C8: every page is read. C7: pending is present. A label that cannot be read makes only its own release Unknown.
#[tokio::test]
async fn more_than_a_page_pending_ones_and_a_malformed_label() {
    let app = TestApp::new().await;
    let releases = releases(&app).await;
    let ns = namespace();
    let documents: Vec<Value> = (0..600)
        .map(|i| {
            record(
                &ns,
                &format!("r{i}"),
                "1",
                if i % 2 == 0 {
                    "deployed"
                } else {
                    "pending-upgrade"
                },
            )
        })
        .chain([record(&ns, "odd", "not-a-number", "deployed")])
        .collect();
    apply(&documents);
    let listing = releases.list(&[]).await.unwrap();
    let here = listing.releases.keys().filter(|(n, _)| *n == ns).count();
    assert_eq!(here, 600);
    assert_eq!(
        listing.releases[&(ns.clone(), "r1".to_owned())].status,
        "pending-upgrade"
    );
    let odd: Vec<&str> = listing
        .unreadable
        .keys()
        .filter(|(n, _)| *n == ns)
        .map(|(_, name)| name.as_str())
        .collect();
    assert_eq!(odd, ["odd"]);
    let found = releases.find(EntryKind::Helm, &ns, "r599").await.unwrap();
    assert_eq!(found.unwrap().revision, 1);
    assert_eq!(
        releases.find(EntryKind::Helm, &ns, "r600").await.unwrap(),
        None
    );
    kubectl(&["delete", "namespace", &ns, "--wait=false"]);
}

#[tokio::test]
async fn a_listing_without_the_marker_is_not_believed() {
    let (app, r, releases) = with_cluster().await;
    let made = app.make_ready("demo", "x", None).await;
    kubectl(&["-n", &releases.namespace, "delete", "secret", "--all"]);
    let (ticked, logs) = r.tick().await;
    assert_eq!(ticked.failed, ["drift"]);
    assert!(
        events(&logs, "check.failed")[0]["error"]
            .as_str()
            .unwrap()
            .contains("marker")
    );
    assert!(app.open_tasks(made.id).await.is_empty());
    releases.ensure_marker().await.unwrap();
    r.tick_well().await;
    assert_eq!(
        app.open_tasks(made.id).await.len(),
        1,
        "with it an empty rest is true"
    );
}

/// A namespace without permission makes only itself Unknown.
#[tokio::test]
async fn a_namespace_that_may_not_be_read_is_unknown_and_the_rest_goes_on() {
    let app = TestApp::new().await;
    let mut r = Reconciler::new(&app).await;
    let full = releases(&app).await;
    let may = app.make_ready("may", "gone", None).await;
    let not = app.make_ready("maynot", "dark", None).await;
    for ns in [&may.namespace, &not.namespace] {
        try_kubectl(&["create", "namespace", ns]);
    }
    let user = format!("u-{}", &full.installation[24..]);
    apply(&[
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": user, "namespace": may.namespace},
               "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": user, "namespace": may.namespace},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
               "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]}),
    ]);
    let mut file: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(kubeconfig()).unwrap()).unwrap();
    file["users"][0]["user"]["as"] = json!(user);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig.json");
    std::fs::write(&path, file.to_string()).unwrap();
    let settings = config::Cluster {
        kubeconfig: Some(path),
        ..Default::default()
    };
    let limited = cluster::connect(&settings).await.unwrap().unwrap();
    r.cx.releases = Some(Arc::new(ClusterReleases {
        clients: limited,
        ..full
    }));
    r.tick_well().await;
    let (_, page) = app.client("admin").get("/api/v1/drift").await;
    assert_eq!(app.open_tasks(may.id).await.len(), 1, "{page:#}");
    assert!(app.open_tasks(not.id).await.is_empty());
    let unknown: BTreeSet<&str> = page["unknown"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| i["name"].as_str().unwrap())
        .collect();
    assert_eq!(unknown, BTreeSet::from(["dark"]), "{page}");
    assert!(
        page["unknown"][0]["detail"]
            .as_str()
            .unwrap()
            .contains(&not.namespace)
    );
}
