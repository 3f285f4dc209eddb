//! What one definition becomes, field by field.

use super::*;

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
