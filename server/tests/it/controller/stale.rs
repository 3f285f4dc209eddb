//! A controller whose watch stands still, or that meets another's refusals: what it does not know it does not undo.

use super::{workflows::workflow, *};

/// So long a stale controller has time to do harm: several passes of it.
const A_WHILE: Duration = Duration::from_secs(8);

/// Two controllers; the second one's watch of that resource stands still from now on, its others do not.
async fn with_a_frozen_one(
    resource: &'static str,
    settle: impl AsyncFnOnce(&Apps),
) -> (Apps, JoinHandle<()>) {
    let mut apps = Apps::new().await;
    let first = apps.running.take().unwrap();
    let proxy = HttpProxy::before(&kubeconfig()).await;
    apps.control(proxied(&proxy).await, pace());
    settle(&apps).await;
    // Its own first passes are over, and what it would apply it has applied.
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.freeze(resource);
    (apps, first)
}

/// The Deployment of a newer spec is neither put back nor fought over.
#[tokio::test]
async fn a_stale_controller_does_not_put_back_what_is_newer() {
    let (apps, _first) = with_a_frozen_one("/servicedefinitions", async |apps: &Apps| {
        apps.define("web", json!({"image": "x:1"}));
        apps.ready("web").await;
    })
    .await;
    apps.define("web", json!({"image": "x:2"}));
    apps.until("web", "ready again", |s| {
        s["ready"] == true && s["observedGeneration"] == 2
    })
    .await;
    tokio::time::sleep(A_WHILE).await;
    let deployment = apps.get("deployment", "web").unwrap();
    assert_eq!(
        (
            &deployment["metadata"]["generation"],
            &deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        ),
        (&json!(2), &json!("x:2")),
        "written twice, by the author's two specs"
    );
    assert_eq!(apps.status("web")["observedGeneration"], 2);
}

/// A stage that an author adds is not removed again, nor one they change put back.
#[tokio::test]
async fn a_stale_controller_neither_prunes_nor_reverts_stages() {
    let (apps, _first) = with_a_frozen_one("/workflows", async |apps: &Apps| {
        let stages = json!([{"name": "a", "image": "x:1"}]);
        assert!(apps.apply(&workflow("w", stages)).0);
        apps.wf_until("w", "ready", |s| s["ready"] == true).await;
    })
    .await;
    let stages = json!([{"name": "a", "image": "x:2"}, {"name": "b", "image": "x"}]);
    assert!(apps.apply(&workflow("w", stages)).0);
    apps.wf_until("w", "ready again", |s| {
        s["ready"] == true && s["progress"] == "2/2"
    })
    .await;
    let seen = |name: &str| {
        let found = apps.get("svcdef", name).expect("it is there");
        [
            found["metadata"]["uid"].clone(),
            found["metadata"]["generation"].clone(),
            found["spec"]["image"].clone(),
        ]
    };
    let before = ["w-a", "w-b"].map(seen);
    assert_eq!(before[0][2], "x:2");
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(["w-a", "w-b"].map(seen), before);
    assert_eq!(apps.wf("w")["observedGeneration"], 2);
}

/// An admission policy of one namespace; it ends with the test.
struct Policy<'a>(&'a Apps, String);

impl<'a> Policy<'a> {
    /// Denies these operations on that resource unless the expression holds.
    fn new(apps: &'a Apps, resource: [&str; 2], operation: &str, holds: &str) -> Self {
        let name = format!("{}-{}", apps.namespace, resource[1]);
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [
                    {"apiGroups": [resource[0]], "apiVersions": ["*"], "resources": [resource[1]], "operations": [operation]},
                ]},
                "validations": [{"expression": holds, "message": "not on a Friday", "reason": "Forbidden"}],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {
                "policyName": name, "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": apps.namespace}}},
            },
        });
        for object in [policy, binding] {
            let (ok, said) = apps.apply(&object);
            assert!(ok, "{said}");
        }
        Self(apps, name)
    }
}

impl Drop for Policy<'_> {
    fn drop(&mut self) {
        for kind in [
            "validatingadmissionpolicybinding",
            "validatingadmissionpolicy",
        ] {
            self.0.kubectl_try(&["delete", kind, &self.1]);
        }
    }
}

/// What a policy forbids of an edit is said of the edit: the status does not go on praising the spec before.
#[tokio::test]
async fn an_edit_that_a_policy_forbids_says_so() {
    let apps = Apps::new().await;
    apps.define("web", json!({"image": "x:1"}));
    apps.ready("web").await;
    let allowed = "object.spec.template.spec.containers.all(c, !c.image.startsWith('forbidden/'))";
    let _policy = Policy::new(&apps, ["apps", "deployments"], "UPDATE", allowed);
    until("the policy holds", SOON, async || {
        let image = ["set", "image", "deployment/web", "app=forbidden/y"];
        !apps.try_k(&[&image[..], &["--dry-run=server"]].concat()).0
    })
    .await;
    apps.define("web", json!({"image": "forbidden/x"}));
    let status = apps
        .until("web", "refused", |s| s["observedGeneration"] == 2)
        .await;
    assert_eq!(
        [
            &status["ready"],
            &status["phase"],
            &status["availableReplicas"]
        ],
        [&json!(false), &json!("Failed"), &json!(1)],
        "{status}"
    );
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("not on a Friday"), "{message}");
}

/// What cannot be removed of an older spec is said, and keeps nothing else from going on; once it can be, it goes.
#[tokio::test]
async fn a_stage_that_may_not_be_removed_is_named_and_hides_nothing() {
    let apps = Apps::new().await;
    let both = json!([{"name": "a", "image": "x:1"}, {"name": "b", "image": "x"}]);
    assert!(apps.apply(&workflow("w", both)).0);
    apps.wf_until("w", "ready", |s| s["ready"] == true).await;
    let never = Policy::new(
        &apps,
        ["polychrome.dev", "servicedefinitions"],
        "DELETE",
        "false",
    );
    until("the policy holds", SOON, async || {
        !apps
            .try_k(&["delete", "svcdef", "w-b", "--dry-run=server"])
            .0
    })
    .await;
    let one = json!([{"name": "a", "image": "x:2"}]);
    assert!(apps.apply(&workflow("w", one)).0);
    let status = apps
        .wf_until("w", "of the new spec, and ready", |s| {
            s["observedGeneration"] == 2 && s["ready"] == true
        })
        .await;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("w-b left the spec and could not be removed")
            && message.contains("not on a Friday"),
        "{status}"
    );
    assert_eq!(status["stages"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(apps.get("svcdef", "w-a").unwrap()["spec"]["image"], "x:2");
    drop(never);
    until("it is gone", Duration::from_secs(90), async || {
        apps.get("svcdef", "w-b").is_none()
    })
    .await;
}

/// What others own of a stage's definition is theirs, and no reason to write it at every pass.
#[tokio::test]
async fn what_others_add_to_a_stage_is_left_and_nothing_is_written_over_it() {
    let mut apps = Apps::bare(&kubeconfig());
    let proxy = HttpProxy::before(&kubeconfig()).await;
    apps.control(proxied(&proxy).await, pace());
    let stages = json!([{"name": "a", "image": "chaos.svcforge.dev/never-ready"}]);
    assert!(apps.apply(&workflow("w", stages)).0);
    apps.wf_until("w", "taken up", |s| s["stages"][0]["phase"] == "Pending")
        .await;
    apps.k(&[
        "patch",
        "svcdef",
        "w-a",
        "--type=merge",
        "-p",
        "{\"spec\":{\"description\":\"by a person\"}}",
    ]);
    // Its passes go on every three seconds: one may write, the next find nothing to do.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let writes = || {
        let mut all = proxy.writes();
        all.retain(|path| path.ends_with("/servicedefinitions/w-a"));
        all.len()
    };
    let before = writes();
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(writes(), before);
    let stage = apps.get("svcdef", "w-a").unwrap();
    assert_eq!(stage["spec"]["description"], "by a person");
}
