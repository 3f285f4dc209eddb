//! Ready means that the new spec is serving (contract §1.4), from the Deployment that the apply call returned.

use crate::cluster::readiness;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use std::borrow::Borrow;
use svcforge_app::domain::Verdict;

/// How far a rollout is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Whether the new spec serves, all of it.
    pub ready: bool,
    /// Available replicas, whether ready or not.
    pub available: i32,
    /// More than "ready": what is in the way, or what it waits for.
    pub verdict: Verdict,
    /// The same in one sentence.
    pub sentence: String,
}

/// Judges the Deployment. Pods only make the sentence better; `ready` never depends on them.
pub fn rollout<P: Borrow<Pod>>(of: Option<&Deployment>, pods: &[P]) -> Rollout {
    let Some(of) = of else {
        return Rollout {
            ready: false,
            available: 0,
            verdict: Verdict::Progressing,
            sentence: "its Deployment is being made".into(),
        };
    };
    let status = of.status.clone().unwrap_or_default();
    let [updated, available, total] = [
        status.updated_replicas,
        status.available_replicas,
        status.replicas,
    ]
    .map(|n| n.unwrap_or(0));
    let desired = of.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
    let current = status.observed_generation.unwrap_or(0) >= of.metadata.generation.unwrap_or(0);
    let part = readiness::deployment(of, pods);
    Rollout {
        ready: desired > 0
            && current
            && updated >= desired
            && available >= desired
            && total == updated,
        available,
        verdict: part.verdict,
        sentence: part.sentence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn judged(spec: &Value, status: &Value, generation: i64) -> (bool, i32, String) {
        let mut of = json!({"metadata": {"name": "web", "generation": generation}, "spec": {"selector": {}, "template": {}}});
        of["spec"]["replicas"] = spec.clone();
        if !status.is_null() {
            of["status"] = status.clone();
        }
        let of: Deployment = serde_json::from_value(of).expect("a Deployment");
        let seen = rollout::<Pod>(Some(&of), &[]);
        (seen.ready, seen.available, seen.sentence)
    }

    #[test]
    fn ready_means_that_the_new_spec_serves() {
        let full = json!({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3});
        let with = |field: &str, value: i32| {
            let mut status = full.clone();
            status[field] = json!(value);
            status
        };
        let three = json!(3);
        assert!(judged(&three, &full, 2).0);
        assert!(judged(&three, &with("observedGeneration", 3), 2).0);
        for (status, generation, available, why) in [
            (full.clone(), 3, 3, "the change has not been taken up yet"),
            (
                with("updatedReplicas", 1),
                2,
                3,
                "old replicas still available",
            ),
            (with("availableReplicas", 2), 2, 2, "not all available"),
            (
                with("replicas", 4),
                2,
                3,
                "a surge replica of the old template",
            ),
            (Value::Null, 1, 0, "no status"),
            (json!({}), 1, 0, "every number missing"),
        ] {
            let (ready, seen, _) = judged(&three, &status, generation);
            assert_eq!((ready, seen), (false, available), "{why}");
        }
        let zero = json!({"observedGeneration": 1});
        assert_eq!(
            judged(&json!(0), &zero, 1),
            (false, 0, "scaled to zero".into())
        );
        assert!(!judged(&Value::Null, &zero, 1).0, "a missing number is 0");
        assert!(!rollout::<Pod>(None, &[]).ready);
    }
}
