//! A `svcforge serve --roles controller` that has no DSN, and a cluster where something is missing.

use super::*;

/// Log lines of a `svcforge serve --roles controller`, which has no DSN.
struct Alone {
    child: std::process::Child,
    log: PathBuf,
    _dir: tempfile::TempDir,
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Alone {
    fn start(kubeconfig: &Path, namespace: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let child = Command::new(svcforge_bin())
            .args(["serve", "--roles", "controller"])
            .env_clear()
            .env("SVCFORGE_KUBECONFIG", kubeconfig)
            .env("SVCFORGE_APPS_NAMESPACE", namespace)
            .env("SVCFORGE_METRICS_PORT", "0")
            .stdout(std::fs::File::create(&log).unwrap())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Self {
            child,
            log,
            _dir: dir,
        }
    }

    fn said(&self, event: &str, words: &str) -> bool {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines()
            .any(|l| l.contains(&format!("\"event\":\"{event}\"")) && l.contains(words))
    }

    async fn says(&self, event: &str, words: &str) {
        until(
            &format!("{event} {words}"),
            Duration::from_secs(20),
            async || self.said(event, words),
        )
        .await;
    }
}

/// Namespace, CRD and RBAC each missing at start: it says which, and starts by itself when they come. Without a database. A malformed
/// object, admitted by an older CRD, is quarantined and stops nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_sleeps_until_it_can_be_served_and_says_what_it_waits_for() {
    svcforge::tls::install();
    let dir = tempfile::Builder::new().prefix("ctl").tempdir().unwrap();
    let launcher = Launcher::new(&svcforge_bin(), dir.path());
    let bins = bin("");
    let mut plane = ControlPlane::start(&launcher, &bins, dir.path(), "unused")
        .await
        .unwrap();
    let apps = Apps::bare(&plane.kubeconfig);
    let crd = apps.kubectl(&[
        "get",
        "crd",
        "servicedefinitions.polychrome.dev",
        "-o",
        "json",
    ]);
    apps.kubectl(&[
        "delete",
        "crd",
        "servicedefinitions.polychrome.dev",
        "--wait=true",
    ]);
    // Somebody who may do nothing yet.
    apps.kubectl(&["-n", "default", "create", "serviceaccount", "ctl"]);
    let token = apps.kubectl(&["-n", "default", "create", "token", "ctl"]);
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(&plane.kubeconfig).unwrap()).unwrap();
    config["users"][0]["user"] = json!({"token": token.trim()});
    let file = dir.path().join("weak.json");
    std::fs::write(&file, config.to_string()).unwrap();

    let weak = Alone::start(&file, "apps-later");
    weak.says("controller.dormant", "RBAC or the namespace is missing")
        .await;
    let strong = Alone::start(&plane.kubeconfig, "apps-later");
    strong
        .says("controller.dormant", "the namespace apps-later is missing")
        .await;
    apps.kubectl(&["create", "namespace", "apps-later"]);
    strong
        .says(
            "controller.dormant",
            "the CRD servicedefinitions.polychrome.dev is missing",
        )
        .await;
    apps.kubectl(&[
        "create",
        "clusterrole",
        "sees",
        "--verb=get,list,watch",
        "--resource=namespaces,servicedefinitions.polychrome.dev,deployments.apps,services",
    ]);
    apps.kubectl(&[
        "create",
        "clusterrolebinding",
        "sees",
        "--clusterrole=sees",
        "--serviceaccount=default:ctl",
    ]);

    // A CRD of before, which checks nothing.
    let mut lax: Value = serde_json::from_str(&crd).unwrap();
    lax["metadata"] = json!({"name": "servicedefinitions.polychrome.dev"});
    lax["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    lax.as_object_mut().unwrap().remove("status");
    let (ok, said) = apps.apply(&lax);
    assert!(ok, "{said}");
    strong
        .says("controller.started", "servicedefinitions")
        .await;
    weak.says(
        "controller.dormant",
        "RBAC is missing: may not patch servicedefinitions/status",
    )
    .await;

    let put = |object: Value| {
        let file = dir.path().join("o.json");
        std::fs::write(&file, object.to_string()).unwrap();
        apps.kubectl(&["-n", "apps-later", "apply", "-f", file.to_str().unwrap()]);
    };
    put(definition("odd", json!({"image": 7, "replicas": "many"})));
    put(definition("bad", json!({"image": "x", "port": 70_000})));
    put(definition(
        "web",
        json!({"image": "x", "port": 8080, "replicas": 1, "env": {}}),
    ));
    let status = |name: &str| {
        let text = apps.kubectl(&["-n", "apps-later", "get", "svcdef", name, "-o", "json"]);
        let object: Value = serde_json::from_str(&text).unwrap();
        let of = |field: &str| {
            object["status"][field]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        format!("{}: {}", of("phase"), of("message"))
    };
    until("web is ready", SOON, async || status("web") == "Ready: ").await;
    strong.says("definition.quarantined", "\"odd\"").await;
    assert_eq!(status("odd"), ": ");
    until("bad says so", SOON, async || {
        status("bad") == "Failed: spec.port must be between 1 and 65535"
    })
    .await;
    put(definition(
        "odd",
        json!({"image": "x", "port": 8080, "replicas": 1}),
    ));
    until("odd is mended", SOON, async || status("odd") == "Ready: ").await;
    assert!(!strong.said("controller.watch_failed", ""), "no error loop");
    // And with its rights, the one that had none begins, too.
    apps.kubectl(&[
        "create",
        "clusterrolebinding",
        "all",
        "--clusterrole=cluster-admin",
        "--serviceaccount=default:ctl",
    ]);
    weak.says("controller.started", "servicedefinitions").await;
    for mut one in [weak, strong] {
        kill(Pid::from_raw(one.child.id() as i32), Signal::SIGTERM).unwrap();
        until("a stop ends it", Duration::from_secs(5), async || {
            one.child.try_wait().unwrap().is_some_and(|s| s.success())
        })
        .await;
    }
    tokio::task::block_in_place(|| plane.stop());
}
