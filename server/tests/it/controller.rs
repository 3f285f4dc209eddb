//! The ServiceDefinition and Workflow controllers against the real API server (contract §1), each test in a namespace of its own.

use crate::support::{
    cluster::{bin, clients, kubeconfig, svcforge_bin},
    proxy::{Http, HttpProxy, until},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::Ordering,
    time::Duration,
};
use svcforge::{
    cluster::{self, Clients},
    config,
    controller::{Controller, Pace},
    embedded::{ControlPlane, Launcher},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_secs(30);

fn pace() -> Pace {
    Pace {
        pending: Duration::from_secs(3),
        dormant: Duration::from_millis(300),
        ..Pace::default()
    }
}

/// A namespace, and a controller that looks after it; both end with the test.
struct Apps {
    namespace: String,
    kubeconfig: PathBuf,
    stop: CancellationToken,
    running: Option<JoinHandle<()>>,
}

impl Drop for Apps {
    fn drop(&mut self) {
        self.stop.cancel();
        self.kubectl_try(&["delete", "namespace", &self.namespace, "--wait=false"]);
    }
}

impl Apps {
    /// The namespace alone.
    fn bare(kubeconfig: &Path) -> Self {
        svcforge::tls::install();
        let id = svcforge::ids::new_id().simple().to_string();
        let apps = Self {
            namespace: format!("ctl-{}", &id[20..]),
            kubeconfig: kubeconfig.into(),
            stop: CancellationToken::new(),
            running: None,
        };
        apps.kubectl(&["create", "namespace", &apps.namespace]);
        apps
    }

    async fn new() -> Self {
        let mut apps = Self::bare(&kubeconfig());
        apps.control(clients().await, pace());
        apps
    }

    fn control(&mut self, clients: Clients, pace: Pace) {
        let one = Controller {
            clients,
            namespace: self.namespace.clone(),
            pace,
        };
        self.running = Some(tokio::spawn(one.run(self.stop.clone())));
    }

    fn kubectl_try(&self, args: &[&str]) -> (bool, String) {
        let out = Command::new(bin("kubectl"))
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(args)
            .output()
            .unwrap();
        let text = if out.status.success() {
            out.stdout
        } else {
            out.stderr
        };
        (
            out.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    fn kubectl(&self, args: &[&str]) -> String {
        let (ok, text) = self.kubectl_try(args);
        assert!(ok, "kubectl {args:?}: {text}");
        text
    }

    /// kubectl in the namespace.
    fn k(&self, args: &[&str]) -> String {
        self.kubectl(&[&["-n", self.namespace.as_str()], args].concat())
    }

    fn try_k(&self, args: &[&str]) -> (bool, String) {
        self.kubectl_try(&[&["-n", self.namespace.as_str()], args].concat())
    }

    /// Applies an object as a person with kubectl does; what the API server said.
    fn apply(&self, object: &Value) -> (bool, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), object.to_string()).unwrap();
        self.try_k(&["apply", "-f", file.path().to_str().unwrap()])
    }

    fn define(&self, name: &str, spec: Value) {
        let (ok, said) = self.apply(&definition(name, spec));
        assert!(ok, "{said}");
    }

    fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let (ok, text) = self.try_k(&["get", kind, name, "-o", "json", "--show-managed-fields"]);
        ok.then(|| serde_json::from_str(&text).unwrap())
    }

    fn status(&self, name: &str) -> Value {
        self.get("svcdef", name)
            .map_or(Value::Null, |o| o["status"].clone())
    }

    /// Waits until the definition's status is as it should be; the status.
    async fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut seen = Value::Null;
        let began = tokio::time::Instant::now();
        while began.elapsed() < SOON {
            seen = self.status(name);
            if holds(&seen) {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        panic!("{name} is not {what}: {seen:#}");
    }

    async fn ready(&self, name: &str) -> Value {
        self.until(name, "ready", |s| s["ready"] == true).await
    }
}

fn definition(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "polychrome.dev/v1alpha1", "kind": "ServiceDefinition", "metadata": {"name": name}, "spec": spec})
}

/// What must hold of an object in every cluster: all that the API server fills in by itself, but for what it counts and dates.
fn lasting(mut object: Value, namespace: &str) -> Value {
    let meta = object["metadata"].as_object_mut().unwrap();
    for dated in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "annotations",
    ] {
        meta.remove(dated);
    }
    let ours = meta["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["manager"] == "polychrome.dev/controller")
        .expect("a field of ours")
        .clone();
    meta.insert("managedFields".into(), json!([{"manager": ours["manager"], "operation": ours["operation"], "fieldsV1": ours["fieldsV1"]}]));
    object["metadata"]["ownerReferences"][0]["uid"] = json!("UID");
    object.as_object_mut().unwrap().remove("status");
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    let text = object.to_string().replace(namespace, "NAMESPACE");
    let uid = without_uids(&text);
    serde_json::from_str(&uid).unwrap()
}

/// Owner references are owned by uid: `k:{"uid":"…"}`.
fn without_uids(text: &str) -> String {
    let mark = "k:{\\\"uid\\\":\\\"";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(mark) {
        out.push_str(&rest[..at + mark.len()]);
        out.push_str("UID");
        rest = &rest[at + mark.len() + 36..];
    }
    out + rest
}

/// Contract §1.3: with nothing but an image, exactly this is stored, and exactly this is ours. The golden file is compared field by field.
#[tokio::test]
async fn nothing_but_an_image_becomes_exactly_this() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "ghcr.io/x:1"}));
    let status = apps.ready("web").await;
    assert_eq!(
        (
            &status["phase"],
            &status["availableReplicas"],
            &status["observedGeneration"],
            &status["message"]
        ),
        (&json!("Ready"), &json!(1), &json!(1), &Value::Null)
    );
    let stored = json!({
        "deployment": lasting(apps.get("deployment", "web").unwrap(), &apps.namespace),
        "service": lasting(apps.get("service", "web").unwrap(), &apps.namespace),
    });
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/it/golden/definition.json"
    );
    if std::env::var_os("GOLDEN_WRITE").is_some() {
        std::fs::write(file, serde_json::to_string_pretty(&stored).unwrap() + "\n").unwrap();
    }
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut differ = vec![];
    compare("", &golden, &stored, &mut differ);
    assert!(differ.is_empty(), "{differ:#?}");
    // What `kubectl get` shows.
    let table = apps.k(&["get", "svcdef"]);
    let head: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        head,
        ["NAME", "READY", "STATUS", "REPLICAS", "IMAGE", "AGE"]
    );
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..5], ["web", "true", "Ready", "1", "ghcr.io/x:1"]);
}

fn compare(path: &str, golden: &Value, stored: &Value, differ: &mut Vec<String>) {
    match (golden, stored) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))) {
                let none = Value::Null;
                compare(
                    &format!("{path}/{key}"),
                    a.get(key).unwrap_or(&none),
                    b.get(key).unwrap_or(&none),
                    differ,
                );
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}/{i}"), a, b, differ);
            }
        }
        (a, b) if a == b => {}
        (a, b) => differ.push(format!(
            "{path}: {a} in the golden file, {b} in the cluster"
        )),
    }
}

/// §1.4: not ready until the new template serves, though the old replica still does; C25: one plain sentence says why.
#[tokio::test]
async fn a_new_image_is_not_ready_until_it_serves() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "ghcr.io/x:1"}));
    apps.ready("web").await;
    // Room for the old pod only: the new template's cannot be made.
    apps.k(&["create", "quota", "tight", "--hard=pods=1"]);
    until("the quota counts", SOON, async || {
        apps.k(&[
            "get",
            "quota",
            "tight",
            "-o",
            "jsonpath={.status.used.pods}",
        ]) == "1"
    })
    .await;
    apps.define("web", json!({"image": "ghcr.io/x:2"}));
    let held = apps
        .until("web", "refused by the quota", |s| s["phase"] == "Failed")
        .await;
    assert_eq!(
        (
            &held["ready"],
            &held["availableReplicas"],
            &held["observedGeneration"]
        ),
        (&json!(false), &json!(1), &json!(2))
    );
    let message = held["message"].as_str().unwrap();
    assert!(
        message.contains("the namespace's quota is used up"),
        "{message}"
    );
    let condition = |s: &Value, kind: &str| {
        s["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["type"] == kind)
            .unwrap()["status"]
            .clone()
    };
    assert_eq!(
        [condition(&held, "Ready"), condition(&held, "Degraded")],
        [json!("False"), json!("True")]
    );
    apps.k(&["delete", "quota", "tight"]);
    let done = apps.ready("web").await;
    assert_eq!(
        (condition(&done, "Degraded"), &done["message"]),
        (json!("False"), &Value::Null)
    );
    let image = apps.k(&[
        "get",
        "pods",
        "-o",
        "jsonpath={.items[*].spec.containers[0].image}",
    ]);
    assert_eq!(image, "ghcr.io/x:2", "none of the old template is left");
}

#[tokio::test]
async fn scaled_to_zero_is_not_ready_and_says_so() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "x", "replicas": 0}));
    let status = apps
        .until("web", "seen", |s| s["observedGeneration"] == 1)
        .await;
    assert_eq!(
        (&status["ready"], &status["phase"], &status["message"]),
        (&json!(false), &json!("Pending"), &json!("scaled to zero"))
    );
    apps.define("web", json!({"image": "x", "replicas": 2}));
    assert_eq!(apps.ready("web").await["availableReplicas"], 2);
    apps.define("web", json!({"image": "x", "replicas": 0}));
    apps.until("web", "at zero", |s| {
        s["message"] == "scaled to zero" && s["observedGeneration"] == 3
    })
    .await;
}

/// A chaos stage makes pods fail: `Failed` with the sentence (C25), until it is repaired.
#[tokio::test]
async fn a_pod_that_fails_says_why_until_it_is_repaired() {
    let apps = Apps::new().await;
    for (image, phase, sentence) in [
        (
            "chaos.svcforge.dev/crash-loop",
            "Failed",
            "0 of 1 pod ready: container app keeps crashing (exit code 2, 4 restarts)",
        ),
        (
            "chaos.svcforge.dev/out-of-memory",
            "Failed",
            "0 of 1 pod ready: container app runs out of memory and keeps being restarted",
        ),
        (
            "chaos.svcforge.dev/never-ready",
            "Pending",
            "0 of 1 pod ready: container app runs but does not answer its readiness probe yet",
        ),
    ] {
        let name = image.rsplit('/').next().unwrap();
        apps.define(name, json!({"image": image}));
        let status = apps
            .until(name, sentence, |s| s["message"] == sentence)
            .await;
        assert_eq!(
            (&status["phase"], &status["ready"]),
            (&json!(phase), &json!(false))
        );
        let shown = apps.k(&["get", "svcdef", name, "--no-headers"]);
        assert_eq!(
            shown.split_whitespace().collect::<Vec<_>>()[1..3],
            ["false", phase]
        );
        apps.define(name, json!({"image": "ghcr.io/x:1"}));
        apps.ready(name).await;
    }
    apps.define("web", json!({"image": "ghcr.io/x:1"}));
    apps.ready("web").await;
    // What cannot get better by itself is `Failed`.
    let pod = apps.k(&[
        "get",
        "pods",
        "-l",
        "app.kubernetes.io/name=web",
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ]);
    let broken = json!({"status": {
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "False"}],
        "containerStatuses": [{"name": "app", "image": "ghcr.io/x:1", "imageID": "", "ready": false, "restartCount": 0,
                               "state": {"waiting": {"reason": "ImagePullBackOff", "message": "unauthorized"}}}]}});
    apps.k(&[
        "patch",
        "pod",
        &pod,
        "--subresource=status",
        "-p",
        &broken.to_string(),
    ]);
    let failed = apps
        .until("web", "failed", |s| s["phase"] == "Failed")
        .await;
    assert_eq!(
        failed["message"],
        "0 of 1 pod ready: cannot pull image ghcr.io/x:1: the registry refuses access"
    );
    let shown = apps.k(&["get", "svcdef", "web", "--no-headers"]);
    assert_eq!(
        shown.split_whitespace().collect::<Vec<_>>()[1..3],
        ["false", "Failed"]
    );
}

/// No finalizer anywhere; garbage collection removes what was made.
#[tokio::test]
async fn deleted_means_that_the_children_go_and_nothing_holds_them() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "x"}));
    apps.ready("web").await;
    for (kind, name) in [("svcdef", "web"), ("deployment", "web"), ("service", "web")] {
        assert_eq!(
            apps.get(kind, name).unwrap()["metadata"]["finalizers"],
            Value::Null,
            "{kind}"
        );
    }
    apps.k(&["delete", "svcdef", "web", "--timeout=10s"]);
    until("the children are gone", SOON, async || {
        apps.get("deployment", "web").is_none() && apps.get("service", "web").is_none()
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(apps.get("deployment", "web").is_none(), "and stay gone");
}

/// A change to a child reconciles its parent at once: what a person changes or removes by hand is put back.
#[tokio::test]
async fn what_somebody_changes_by_hand_is_put_back() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "x", "env": {"A": "1"}}));
    apps.ready("web").await;
    apps.k(&["set", "image", "deployment/web", "app=evil"]);
    apps.k(&["label", "deployment", "web", "mine=yes"]);
    let image = || {
        apps.k(&[
            "get",
            "deployment",
            "web",
            "-o",
            "jsonpath={.spec.template.spec.containers[0].image}",
        ])
    };
    until("the image is put back", SOON, async || image() == "x").await;
    assert_eq!(
        apps.get("deployment", "web").unwrap()["metadata"]["labels"]["mine"],
        "yes",
        "what is not ours stays"
    );
    apps.k(&["delete", "service", "web"]);
    until("the service is back", SOON, async || {
        apps.get("service", "web").is_some()
    })
    .await;
    apps.k(&["delete", "deployment", "web"]);
    until("the deployment is back", SOON, async || {
        apps.get("deployment", "web").is_some()
    })
    .await;
    // What leaves the spec leaves the Deployment.
    apps.define("web", json!({"image": "x", "env": {}}));
    until("A is gone", SOON, async || {
        apps.k(&[
            "get",
            "deployment",
            "web",
            "-o",
            "jsonpath={.spec.template.spec.containers[0].env[*].name}",
        ]) == "PORT"
    })
    .await;
}

/// C26, C27: refused before anything is written, with the field's path; odd names that are allowed are applied exactly.
#[tokio::test]
async fn what_could_not_be_honoured_is_refused_at_the_door() {
    let apps = Apps::new().await;
    for (name, spec, said) in [
        ("web", json!({}), "spec.image: Required value"),
        ("web", json!({"image": ""}), "spec.image"),
        ("web", json!({"image": " x"}), "spec.image"),
        ("web", json!({"image": "x", "port": 0}), "spec.port"),
        ("web", json!({"image": "x", "port": 65536}), "spec.port"),
        ("web", json!({"image": "x", "port": "http"}), "spec.port"),
        (
            "web",
            json!({"image": "x", "replicas": -1}),
            "spec.replicas",
        ),
        (
            "web",
            json!({"image": "x", "replicas": 3_000_000_000_i64}),
            "spec.replicas",
        ),
        ("web", json!({"image": "x", "env": {"": "v"}}), "spec.env"),
        (
            "web",
            json!({"image": "x", "env": {"A=B": "v"}}),
            "spec.env",
        ),
        ("web", json!({"image": "x", "env": {"A": 1}}), "spec.env.A"),
        ("1a", json!({"image": "x"}), "metadata.name"),
        ("a.b", json!({"image": "x"}), "metadata.name"),
        (&"a".repeat(64), json!({"image": "x"}), "metadata.name"),
        ("-x", json!({"image": "x"}), "metadata.name"),
    ] {
        let (ok, text) = apps.apply(&definition(name, spec.clone()));
        assert!(!ok && text.contains(said), "{name} {spec}: {text}");
    }
    let long = "a".repeat(63);
    apps.define(
        &long,
        json!({"image": "x", "env": {"1 odd.name": "", "PORT": "1"}}),
    );
    apps.ready(&long).await;
    let env =
        &apps.get("deployment", &long).unwrap()["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(
        *env,
        json!([{"name": "1 odd.name"}, {"name": "PORT", "value": "1"}])
    );
}

/// At rest nothing is written: no resourceVersion moves, no status is patched, however often it looks.
#[tokio::test]
async fn at_rest_nothing_moves() {
    let mut apps = Apps::bare(&kubeconfig());
    let proxy = HttpProxy::before(&kubeconfig()).await;
    let often = Pace {
        ready: Duration::from_secs(1),
        ..pace()
    };
    apps.control(proxied(&proxy).await, often);
    for n in 0..5 {
        apps.define(&format!("web-{n}"), json!({"image": "x"}));
    }
    for n in 0..5 {
        apps.ready(&format!("web-{n}")).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let versions = || {
        let of = "jsonpath={.items[*].metadata.resourceVersion}";
        apps.k(&["get", "svcdef,deployment,service", "-o", of])
    };
    let before = versions();
    let [patches, requests] =
        [&proxy.status_patches, &proxy.requests].map(|n| n.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(versions(), before);
    assert_eq!(before.split_whitespace().count(), 15);
    assert_eq!(
        proxy.status_patches.load(Ordering::Relaxed),
        patches,
        "no status was patched"
    );
    assert!(
        proxy.requests.load(Ordering::Relaxed) > requests,
        "though it looked"
    );
}

async fn proxied(proxy: &HttpProxy) -> Clients {
    let settings = config::Cluster {
        kubeconfig: Some(proxy.kubeconfig.clone()),
        ..Default::default()
    };
    cluster::connect(&settings).await.unwrap().unwrap()
}

/// Two at once are harmless; a restart finds everything as it is.
#[tokio::test]
async fn two_controllers_at_once_do_no_harm() {
    let mut apps = Apps::new().await;
    let first = apps.running.take();
    apps.control(clients().await, pace());
    for n in 0..5 {
        apps.define(&format!("web-{n}"), json!({"image": "x"}));
    }
    for n in 0..5 {
        apps.ready(&format!("web-{n}")).await;
    }
    for n in 0..5 {
        let generation =
            apps.get("deployment", &format!("web-{n}")).unwrap()["metadata"]["generation"].clone();
        assert_eq!(generation, 1, "written once");
    }
    drop(first);
}

/// N7: an annotation stops it there; the status goes on and says so.
#[tokio::test]
async fn a_paused_definition_is_left_alone() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "x:1"}));
    apps.ready("web").await;
    apps.k(&[
        "annotate",
        "svcdef",
        "web",
        "svcforge.dev/paused=incident 7",
    ]);
    apps.until("web", "paused", |s| {
        s["message"]
            .as_str()
            .is_some_and(|m| m.contains("incident 7"))
    })
    .await;
    apps.k(&["scale", "deployment", "web", "--replicas=2"]);
    apps.k(&[
        "patch",
        "svcdef",
        "web",
        "--type=merge",
        "-p",
        "{\"spec\":{\"image\":\"x:2\"}}",
    ]);
    let held = apps
        .until("web", "of generation 2", |s| s["observedGeneration"] == 2)
        .await;
    assert_eq!(
        held["ready"], false,
        "the current spec does not serve: {held}"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    let deployment = apps.get("deployment", "web").unwrap();
    assert_eq!(
        (
            &deployment["spec"]["replicas"],
            &deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        ),
        (&json!(2), &json!("x:1"))
    );
    apps.k(&["annotate", "svcdef", "web", "svcforge.dev/paused-"]);
    until("it goes on", SOON, async || {
        let d = apps.get("deployment", "web").unwrap();
        d["spec"]["replicas"] == 1
            && d["spec"]["template"]["spec"]["containers"][0]["image"] == "x:2"
    })
    .await;
    apps.ready("web").await;
}

/// An earlier controller wrote the status by other means: its fields are taken over.
#[tokio::test]
async fn a_status_that_an_earlier_controller_wrote_is_taken_over() {
    let mut apps = Apps::bare(&kubeconfig());
    apps.define("web", json!({"image": "x"}));
    let old = json!({"status": {"ready": true, "phase": "Ready", "availableReplicas": 7, "message": "from before"}});
    apps.k(&[
        "patch",
        "svcdef",
        "web",
        "--subresource=status",
        "--type=merge",
        "--field-manager=polychrome.dev/controller",
        "-p",
        &old.to_string(),
    ]);
    apps.control(clients().await, pace());
    let status = apps
        .until("web", "taken over", |s| {
            s["ready"] == true && s["availableReplicas"] == 1
        })
        .await;
    assert_eq!(
        (&status["phase"], &status["observedGeneration"]),
        (&json!("Ready"), &json!(1))
    );
    assert_eq!(status["message"], Value::Null, "its words are gone, too");
}

/// One whose Deployment cannot be applied says so, and stops nobody else.
#[tokio::test]
async fn one_that_is_rejected_says_so_and_stops_nobody() {
    let apps = Apps::new().await;
    // Its selector cannot be changed any more.
    apps.k(&["create", "deployment", "taken", "--image=other"]);
    apps.define("taken", json!({"image": "x"}));
    apps.define("web", json!({"image": "x"}));
    apps.ready("web").await;
    let status = apps
        .until("taken", "rejected", |s| s["phase"] == "Failed")
        .await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("the API server refuses what it comes to")
            && message.contains("immutable"),
        "{message}"
    );
}

// --- R5: the watches ---------------------------------------------------------------------------------------------------------

/// Whatever the API does, it is no hot loop, and afterwards what changed meanwhile is applied.
#[tokio::test]
async fn r5_the_controller_outlives_its_api() {
    let mut apps = Apps::bare(&kubeconfig());
    let proxy = HttpProxy::before(&kubeconfig()).await;
    apps.control(proxied(&proxy).await, pace());
    apps.define("web", json!({"image": "x:0"}));
    apps.ready("web").await;
    for (n, fault) in [
        Http::Down,
        Http::Status(500),
        Http::Status(429),
        Http::Gone,
        Http::Broken,
    ]
    .into_iter()
    .enumerate()
    {
        proxy.set(fault);
        let before = proxy.requests.load(Ordering::Relaxed);
        apps.define("web", json!({"image": format!("x:{}", n + 1)}));
        tokio::time::sleep(Duration::from_secs(3)).await;
        let asked = proxy.requests.load(Ordering::Relaxed) - before;
        assert!(asked < 90, "{fault:?}: {asked} requests in 3 s");
        proxy.set(Http::Pass);
        let generation = n + 2;
        until(
            &format!("after {fault:?} it goes on"),
            Duration::from_secs(60),
            async || {
                let s = apps.status("web");
                s["ready"] == true && s["observedGeneration"] == generation
            },
        )
        .await;
    }
    // Deleted while nobody could watch: the list afterwards does not show it, and the next look is minutes away.
    proxy.set(Http::Gone);
    tokio::time::sleep(Duration::from_secs(1)).await;
    apps.k(&["delete", "service,deployment", "web"]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.set(Http::Pass);
    until("what was deleted is back", SOON, async || {
        apps.get("service", "web").is_some() && apps.get("deployment", "web").is_some()
    })
    .await;
    apps.ready("web").await;
}

// --- dormant starts ----------------------------------------------------------------------------------------------------------

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

// --- Workflow ----------------------------------------------------------------------------------------------------------------

fn workflow(name: &str, stages: Value) -> Value {
    json!({"apiVersion": "polychrome.dev/v1alpha1", "kind": "Workflow", "metadata": {"name": name}, "spec": {"stages": stages}})
}

fn diamond() -> Value {
    json!([
        {"name": "a", "image": "x"}, {"name": "b", "image": "x", "dependsOn": ["a"]}, {"name": "c", "image": "x", "dependsOn": ["a"]},
        {"name": "d", "image": "x", "dependsOn": ["b", "c"]}, {"name": "e", "image": "x", "dependsOn": ["d"]}])
}

impl Apps {
    fn wf(&self, name: &str) -> Value {
        self.get("wf", name)
            .map_or(Value::Null, |o| o["status"].clone())
    }

    async fn wf_until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut seen = Value::Null;
        let began = tokio::time::Instant::now();
        while began.elapsed() < SOON {
            seen = self.wf(name);
            if holds(&seen) {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        panic!("{name} is not {what}: {seen:#}");
    }
}

#[tokio::test]
async fn a_diamond_of_five_stages_keeps_its_order() {
    let apps = Apps::new().await;
    assert!(apps.apply(&workflow("w", diamond())).0);
    let status = apps.wf_until("w", "ready", |s| s["ready"] == true).await;
    assert_eq!(
        (&status["phase"], &status["progress"]),
        (&json!("Ready"), &json!("5/5"))
    );
    // Created in order, each after what it depends on was ready: a definition's own versions tell.
    let ready_at = |stage: &str| {
        let of = apps.get("svcdef", &format!("w-{stage}")).unwrap();
        let conditions = of["status"]["conditions"].as_array().unwrap().clone();
        let ready =
            conditions.iter().find(|c| c["type"] == "Ready").unwrap()["lastTransitionTime"].clone();
        (
            of["metadata"]["creationTimestamp"]
                .as_str()
                .unwrap()
                .to_owned(),
            ready.as_str().unwrap().to_owned(),
        )
    };
    for (stage, before) in [("b", "a"), ("c", "a"), ("d", "b"), ("d", "c"), ("e", "d")] {
        assert!(
            ready_at(stage).0 >= ready_at(before).1,
            "{stage} after {before}"
        );
    }
    let child = apps.get("svcdef", "w-d").unwrap();
    assert_eq!(child["metadata"]["ownerReferences"][0]["kind"], "Workflow");
    assert_eq!(child["spec"]["owner"], "workflow:w");
    // A stage that lives is updated, never gated; one that left the spec goes.
    let less = json!([
        {"name": "a", "image": "x"}, {"name": "c", "image": "x", "dependsOn": ["a"]}, {"name": "d", "image": "x", "dependsOn": ["c"]},
        {"name": "e", "image": "x", "dependsOn": ["d"], "env": {"K": "v"}}]);
    assert!(apps.apply(&workflow("w", less)).0);
    until("b is gone, e is updated", SOON, async || {
        apps.get("svcdef", "w-b").is_none()
            && apps.get("svcdef", "w-e").unwrap()["spec"]["env"]["K"] == "v"
    })
    .await;
    apps.k(&["delete", "wf", "w"]);
    until("the stages are collected", SOON, async || {
        apps.k(&["get", "svcdef", "-o", "name"]).trim().is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_failing_stage_holds_what_depends_on_it() {
    let apps = Apps::new().await;
    let mut stages = diamond();
    // Its pods cannot be made: two do not fit.
    apps.k(&["create", "quota", "tight", "--hard=pods=3"]);
    stages[1]["replicas"] = json!(4);
    assert!(apps.apply(&workflow("w", stages.clone())).0);
    let held = apps
        .wf_until("w", "failed", |s| s["phase"] == "Failed")
        .await;
    let stage = |s: &Value, name: &str| {
        s["stages"]
            .as_array()
            .unwrap()
            .iter()
            .find(|x| x["name"] == name)
            .unwrap()
            .clone()
    };
    assert!(
        held["message"].as_str().unwrap().starts_with("stage "),
        "{held}"
    );
    assert_eq!(stage(&held, "d")["phase"], "Waiting");
    assert!(apps.get("svcdef", "w-d").is_none() && apps.get("svcdef", "w-e").is_none());
    apps.k(&["delete", "quota", "tight"]);
    let done = apps.wf_until("w", "ready", |s| s["ready"] == true).await;
    assert_eq!(done["progress"], "5/5");
}

#[tokio::test]
async fn what_is_wrong_with_a_workflow_is_said_and_changes_nothing() {
    let apps = Apps::new().await;
    for (name, stages, said) in [
        (
            "circle",
            json!([{"name": "a", "image": "x", "dependsOn": ["b"]}, {"name": "b", "image": "x", "dependsOn": ["a"]}]),
            "in a circle: a -> b -> a",
        ),
        (
            "dangling",
            json!([{"name": "a", "image": "x", "dependsOn": ["z"]}]),
            "stage a depends on z, which is no stage",
        ),
        (
            "long",
            json!([{"name": "a".repeat(60), "image": "x"}]),
            "65 characters, 63 are allowed",
        ),
    ] {
        assert!(apps.apply(&workflow(name, stages)).0);
        let status = apps
            .wf_until(name, "degraded", |s| s["phase"] == "Degraded")
            .await;
        assert!(
            status["message"].as_str().unwrap().contains(said),
            "{status}"
        );
    }
    assert!(
        apps.k(&["get", "svcdef", "-o", "name"]).trim().is_empty(),
        "nothing was made"
    );
    // The names are a map's keys: the API server itself refuses one that is there twice, or ours does.
    let twice = workflow(
        "twice",
        json!([{"name": "a", "image": "x"}, {"name": "a", "image": "y"}]),
    );
    if apps.apply(&twice).0 {
        let status = apps
            .wf_until("twice", "degraded", |s| s["phase"] == "Degraded")
            .await;
        assert!(
            status["message"]
                .as_str()
                .unwrap()
                .contains("is there twice"),
            "{status}"
        );
    }
    // A same-named object of somebody else is never overwritten.
    apps.define("w-a", json!({"image": "theirs"}));
    assert!(
        apps.apply(&workflow(
            "w",
            json!([{"name": "a", "image": "ours"}, {"name": "b", "image": "ours"}])
        ))
        .0
    );
    let status = apps
        .wf_until("w", "degraded", |s| s["phase"] == "Degraded")
        .await;
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("w-a exists and is not this Workflow's"),
        "{status}"
    );
    assert_eq!(
        apps.get("svcdef", "w-a").unwrap()["spec"]["image"],
        "theirs"
    );
    assert!(
        apps.get("svcdef", "w-b").is_some(),
        "what does not depend on it goes on"
    );
}

/// One edit changes a stage and adds another that depends on it: the new one waits for what the change comes to.
#[tokio::test]
async fn a_stage_that_is_being_changed_is_not_ready_for_others() {
    let apps = Apps::new().await;
    assert!(
        apps.apply(&workflow("w", json!([{"name": "a", "image": "x:1"}])))
            .0
    );
    apps.wf_until("w", "ready", |s| s["ready"] == true).await;
    let stages = json!([{"name": "a", "image": "chaos.svcforge.dev/never-ready"}, {"name": "b", "image": "x", "dependsOn": ["a"]}]);
    assert!(apps.apply(&workflow("w", stages)).0);
    let held = apps
        .wf_until("w", "taken up", |s| s["stages"][1]["phase"] == "Waiting")
        .await;
    assert_eq!(held["stages"][1]["message"], "waits for a");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(apps.get("svcdef", "w-b").is_none());
}

/// What the API server refuses of one stage says so, and holds up no other; variables that leave a stage's spec leave its definition.
#[tokio::test]
async fn a_refused_stage_says_so_and_holds_up_no_other() {
    let apps = Apps::new().await;
    apps.k(&[
        "create",
        "quota",
        "one",
        "--hard=count/servicedefinitions.polychrome.dev=1",
    ]);
    until("the quota counts", SOON, async || {
        apps.k(&["get", "quota", "one", "-o", "jsonpath={.status.used}"])
            .contains("\"0\"")
    })
    .await;
    let stages =
        |env: Value| json!([{"name": "a", "image": "x", "env": env}, {"name": "b", "image": "x"}]);
    assert!(
        apps.apply(&workflow("w", stages(json!({"A": "1", "B": "2"}))))
            .0
    );
    let status = apps
        .wf_until("w", "failed", |s| s["phase"] == "Failed")
        .await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("the API server refuses it") && message.contains("exceeded quota"),
        "{message}"
    );
    until("the other one is ready", SOON, async || {
        let stages = apps.wf("w")["stages"].clone();
        stages
            .as_array()
            .unwrap()
            .iter()
            .filter(|s| s["ready"] == true)
            .count()
            == 1
    })
    .await;
    apps.k(&["delete", "quota", "one"]);
    // What was refused is tried again within a minute.
    until(
        "every stage is ready",
        Duration::from_secs(90),
        async || apps.wf("w")["ready"] == true,
    )
    .await;
    assert!(apps.apply(&workflow("w", stages(json!({"B": "2"})))).0);
    until("A is gone", SOON, async || {
        apps.get("svcdef", "w-a").unwrap()["spec"]["env"] == json!({"B": "2"})
    })
    .await;
}
