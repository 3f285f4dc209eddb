//! Workflows: order, failure, refusals.

use super::*;

pub(super) fn workflow(name: &str, stages: Value) -> Value {
    json!({"apiVersion": "polychrome.dev/v1alpha1", "kind": "Workflow", "metadata": {"name": name}, "spec": {"stages": stages}})
}

fn diamond() -> Value {
    json!([
        {"name": "a", "image": "x"}, {"name": "b", "image": "x", "dependsOn": ["a"]}, {"name": "c", "image": "x", "dependsOn": ["a"]},
        {"name": "d", "image": "x", "dependsOn": ["b", "c"]}, {"name": "e", "image": "x", "dependsOn": ["d"]}])
}

impl Apps {
    pub(super) fn wf(&self, name: &str) -> Value {
        self.get("wf", name)
            .map_or(Value::Null, |o| o["status"].clone())
    }

    pub(super) async fn wf_until(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
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
