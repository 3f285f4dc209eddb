//! One pure function per kind: verdict and sentence from what the API server says. Deployments by the contract's rule (§1.4).

use super::{
    ServiceDefinition,
    trouble::{refusal, trouble_of},
};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod, Service},
};
use kube::ResourceExt;
use std::borrow::Borrow;
use svcforge_app::domain::{Part, Verdict};

struct Judged {
    verdict: Verdict,
    sentence: String,
    ready: i32,
    desired: i32,
}

impl Judged {
    fn part(self, kind: &str, name: String) -> Part {
        let Self {
            verdict,
            sentence,
            ready,
            desired,
        } = self;
        Part {
            kind: kind.into(),
            name,
            verdict,
            sentence,
            ready,
            desired,
        }
    }
}

fn counted(ready: i32, desired: i32) -> String {
    match desired {
        1 => format!("{ready} of 1 pod ready"),
        n => format!("{ready} of {n} pods ready"),
    }
}

/// Judges a Deployment: ready ⇔ desired > 0 ∧ observed ≥ generation ∧ updated ≥ desired ∧ available ≥ desired ∧ total = updated.
pub fn deployment<P: Borrow<Pod>>(d: &Deployment, pods: &[P]) -> Part {
    let spec = d.spec.as_ref();
    let desired = spec.and_then(|s| s.replicas).unwrap_or(1);
    let status = d.status.clone().unwrap_or_default();
    let [updated, available, total] = [
        status.updated_replicas,
        status.available_replicas,
        status.replicas,
    ]
    .map(|n| n.unwrap_or(0));
    let observed = status.observed_generation.unwrap_or(0) >= d.metadata.generation.unwrap_or(0);
    let condition = |kind: &str| status.conditions.iter().flatten().find(|c| c.type_ == kind);
    let (verdict, sentence) = if desired == 0 {
        (Verdict::ScaledToZero, "scaled to zero".into())
    } else if spec.and_then(|s| s.paused) == Some(true) {
        (Verdict::Paused, "its rollout is paused".into())
    } else if observed && updated >= desired && available >= desired && total == updated {
        (Verdict::Complete, counted(available, desired))
    } else if !observed && status.observed_generation.is_some() {
        (
            Verdict::Progressing,
            "the change has not been taken up yet".into(),
        )
    } else if let Some(c) =
        condition("Progressing").filter(|c| c.reason.as_deref() == Some("ProgressDeadlineExceeded"))
    {
        let why = trouble_of(pods).map_or_else(
            || {
                c.message
                    .clone()
                    .unwrap_or_else(|| "the rollout takes too long".into())
            },
            |t| t.1,
        );
        (
            Verdict::Failed,
            format!("{}: {why}", counted(available, desired)),
        )
    } else if let Some(c) = condition("ReplicaFailure").filter(|c| c.status == "True") {
        (
            Verdict::Failed,
            format!(
                "{}: {}",
                counted(available, desired),
                refusal(c.message.as_deref().unwrap_or_default())
            ),
        )
    } else {
        waiting(pods, available, desired, || {
            if available >= desired {
                "the old version is still being replaced".into()
            } else {
                "pods are starting".into()
            }
        })
    };
    Judged {
        verdict,
        sentence,
        ready: available,
        desired,
    }
    .part("Deployment", d.name_any())
}

/// Judges a ServiceDefinition by what its controller says of it.
pub fn definition(of: &ServiceDefinition) -> Part {
    let desired = of.spec.replicas;
    let status = of.status.clone().unwrap_or_default();
    let current = status.observed_generation.unwrap_or(0) >= of.metadata.generation.unwrap_or(0);
    let said = status.message.unwrap_or_else(|| "pods are starting".into());
    let (verdict, sentence) = if !current {
        (
            Verdict::Progressing,
            "its controller has not taken the change up yet".into(),
        )
    } else if of.is_ready() {
        (
            Verdict::Complete,
            counted(status.available_replicas, desired),
        )
    } else if status.phase == "Failed" {
        (Verdict::Failed, said)
    } else if desired == 0 {
        (Verdict::ScaledToZero, said)
    } else {
        (Verdict::Progressing, said)
    };
    Judged {
        verdict,
        sentence,
        ready: status.available_replicas,
        desired,
    }
    .part("ServiceDefinition", of.name_any())
}

/// Judges a StatefulSet.
pub fn stateful_set<P: Borrow<Pod>>(s: &StatefulSet, pods: &[P]) -> Part {
    let desired = s.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
    let status = s.status.clone().unwrap_or_default();
    let ready = status.ready_replicas.unwrap_or(0);
    let current = status.observed_generation.unwrap_or(0) >= s.metadata.generation.unwrap_or(0);
    let rolled = status.updated_replicas.unwrap_or(0) >= desired
        && status.update_revision == status.current_revision;
    let (verdict, sentence) = if desired == 0 {
        (Verdict::ScaledToZero, "scaled to zero".into())
    } else if current && rolled && ready >= desired {
        (Verdict::Complete, counted(ready, desired))
    } else if !current {
        (
            Verdict::Progressing,
            "the change has not been taken up yet".into(),
        )
    } else {
        waiting(pods, ready, desired, || {
            if ready >= desired {
                "the old version is still being replaced".into()
            } else {
                "pods are starting".into()
            }
        })
    };
    Judged {
        verdict,
        sentence,
        ready,
        desired,
    }
    .part("StatefulSet", s.name_any())
}

/// Judges a DaemonSet.
pub fn daemon_set(d: &DaemonSet) -> Part {
    let status = d.status.clone().unwrap_or_default();
    let (desired, ready) = (
        status.desired_number_scheduled,
        status.number_available.unwrap_or(0),
    );
    let current = status.observed_generation.unwrap_or(0) >= d.metadata.generation.unwrap_or(0);
    let done =
        current && status.updated_number_scheduled.unwrap_or(0) >= desired && ready >= desired;
    let verdict = if done {
        Verdict::Complete
    } else {
        Verdict::Progressing
    };
    Judged {
        verdict,
        sentence: counted(ready, desired),
        ready,
        desired,
    }
    .part("DaemonSet", d.name_any())
}

/// Judges a Job.
pub fn job(j: &Job) -> Part {
    let status = j.status.clone().unwrap_or_default();
    let condition = |kind: &str| {
        status
            .conditions
            .iter()
            .flatten()
            .find(|c| c.type_ == kind && c.status == "True")
    };
    let (verdict, sentence) = if condition("Complete").is_some() {
        (Verdict::Complete, "done".into())
    } else if let Some(c) = condition("Failed") {
        (
            Verdict::Failed,
            format!("failed: {}", c.message.clone().unwrap_or_default()),
        )
    } else if j.spec.as_ref().and_then(|s| s.suspend) == Some(true) {
        (Verdict::Paused, "suspended".into())
    } else {
        (Verdict::Progressing, "running".into())
    };
    // A job's pods are not what serves.
    Judged {
        verdict,
        sentence,
        ready: 0,
        desired: 0,
    }
    .part("Job", j.name_any())
}

/// Judges a claim of storage.
pub fn claim(c: &PersistentVolumeClaim) -> Part {
    let phase = c
        .status
        .as_ref()
        .and_then(|s| s.phase.as_deref())
        .unwrap_or("Pending");
    let (verdict, sentence) = match phase {
        "Bound" => (Verdict::Complete, "bound"),
        "Lost" => (Verdict::Failed, "its volume is lost"),
        _ => (Verdict::Progressing, "waiting for a volume"),
    };
    Judged {
        verdict,
        sentence: sentence.into(),
        ready: 0,
        desired: 0,
    }
    .part("PersistentVolumeClaim", c.name_any())
}

/// Judges a Service: there, except that a load balancer needs its address.
pub fn service(s: &Service) -> Part {
    let wants = s.spec.as_ref().and_then(|s| s.type_.as_deref()) == Some("LoadBalancer");
    let has = s
        .status
        .as_ref()
        .and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref())
        .is_some_and(|ingress| !ingress.is_empty());
    let (verdict, sentence) = if wants && !has {
        (
            Verdict::Progressing,
            "waiting for the load balancer's address",
        )
    } else {
        (Verdict::Complete, "there")
    };
    Judged {
        verdict,
        sentence: sentence.into(),
        ready: 0,
        desired: 0,
    }
    .part("Service", s.name_any())
}

fn waiting<P: Borrow<Pod>>(
    pods: &[P],
    ready: i32,
    desired: i32,
    otherwise: impl Fn() -> String,
) -> (Verdict, String) {
    let (failed, why) = trouble_of(pods).unwrap_or_else(|| (false, otherwise()));
    let verdict = if failed {
        Verdict::Failed
    } else {
        Verdict::Progressing
    };
    (verdict, format!("{}: {why}", counted(ready, desired)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn deploy(spec: Value, status: Value, generation: i64) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "generation": generation},
            "spec": {"selector": {}, "template": {}, "replicas": spec["replicas"], "paused": spec["paused"]},
            "status": status,
        }))
        .expect("a Deployment")
    }

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).expect("a Pod")
    }

    fn waiting_pod(reason: &str) -> Pod {
        pod(
            json!({"phase": "Pending", "containerStatuses": [{"name": "app", "image": "ghcr.io/x:1", "imageID": "", "ready": false,
            "restartCount": 4, "state": {"waiting": {"reason": reason, "message": "m"}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}),
        )
    }

    #[test]
    fn a_deployment_is_ready_only_when_the_new_spec_serves() {
        let full = json!({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3});
        let three = json!({"replicas": 3});
        let none: [Pod; 0] = [];
        let verdict = |spec: &Value, status: &Value, generation| {
            deployment(&deploy(spec.clone(), status.clone(), generation), &none).verdict
        };
        assert_eq!(verdict(&three, &full, 2), Verdict::Complete);
        assert_eq!(
            verdict(&three, &full, 3),
            Verdict::Progressing,
            "generation not observed"
        );
        for (field, value) in [
            ("updatedReplicas", 2),
            ("availableReplicas", 2),
            ("replicas", 4),
        ] {
            let mut status = full.clone();
            status[field] = json!(value);
            assert_eq!(verdict(&three, &status, 2), Verdict::Progressing, "{field}");
        }
        assert_eq!(
            verdict(&three, &Value::Null, 1),
            Verdict::Progressing,
            "no status yet"
        );
        assert_eq!(
            verdict(
                &json!({"replicas": 0}),
                &json!({"observedGeneration": 1}),
                1
            ),
            Verdict::ScaledToZero
        );
        assert_eq!(
            verdict(&json!({"replicas": 1, "paused": true}), &json!({}), 1),
            Verdict::Paused
        );
    }

    #[test]
    fn trouble_is_one_plain_sentence() {
        let d = deploy(
            json!({"replicas": 3}),
            json!({"observedGeneration": 1, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 1}),
            1,
        );
        let said = |pods: &[Pod]| {
            let part = deployment(&d, pods);
            (part.verdict, part.sentence)
        };
        let failed = |text: &str| (Verdict::Failed, text.to_owned());
        assert_eq!(
            said(&[waiting_pod("ImagePullBackOff")]),
            failed("1 of 3 pods ready: cannot pull image ghcr.io/x:1")
        );
        assert_eq!(
            said(&[waiting_pod("CrashLoopBackOff")]),
            failed("1 of 3 pods ready: container app runs out of memory and keeps being restarted")
        );
        assert_eq!(
            said(&[waiting_pod("CreateContainerConfigError")]),
            failed("1 of 3 pods ready: container app cannot be created: m")
        );
        let unschedulable = pod(
            json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]}),
        );
        assert_eq!(
            said(&[unschedulable]),
            failed("1 of 3 pods ready: no node takes a pod: 0/1 nodes")
        );
        assert_eq!(
            said(&[]),
            (
                Verdict::Progressing,
                "1 of 3 pods ready: pods are starting".into()
            )
        );
    }

    /// Where pods may not be read, or none could be made, the sentence comes from the Deployment's conditions.
    #[test]
    fn a_rollout_that_is_given_up_has_failed_with_or_without_pods() {
        let none: [Pod; 0] = [];
        let with = |conditions: Value| {
            let status = json!({"observedGeneration": 1, "replicas": 3, "updatedReplicas": 2, "availableReplicas": 2, "conditions": conditions});
            deploy(json!({"replicas": 3}), status, 1)
        };
        let given_up = with(
            json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
            "message": "ReplicaSet \"web-1\" has timed out progressing."}]),
        );
        let part = deployment(&given_up, &none);
        assert_eq!(
            (part.verdict, part.sentence.as_str()),
            (
                Verdict::Failed,
                "2 of 3 pods ready: ReplicaSet \"web-1\" has timed out progressing."
            )
        );
        let part = deployment(&given_up, &[waiting_pod("ImagePullBackOff")]);
        assert_eq!(
            part.sentence, "2 of 3 pods ready: cannot pull image ghcr.io/x:1",
            "a pod knows better"
        );
        let refused = with(
            json!([{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: q"}]),
        );
        let part = deployment(&refused, &none);
        assert_eq!(part.verdict, Verdict::Failed);
        assert!(
            part.sentence.starts_with("2 of 3 pods ready: "),
            "{}",
            part.sentence
        );
        let going_on = with(
            json!([{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated", "message": "m"}]),
        );
        assert_eq!(deployment(&going_on, &none).verdict, Verdict::Progressing);
    }
}
