//! One pure function per kind: verdict and sentence from what the API server says. Deployments by the contract's rule (§1.4).

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    batch::v1::Job,
    core::v1::{ContainerStatus, PersistentVolumeClaim, Pod, Service},
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
                "{}: pods are refused: {}",
                counted(available, desired),
                c.message.clone().unwrap_or_default()
            ),
        )
    } else if !observed {
        (
            Verdict::Progressing,
            "the change has not been taken up yet".into(),
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

/// The worst trouble among pods: whether it is final without a change, and in words.
fn trouble_of<P: Borrow<Pod>>(pods: &[P]) -> Option<(bool, String)> {
    pods.iter()
        .filter_map(|p| trouble(p.borrow()))
        .max_by_key(|(failed, _)| *failed)
}

/// What keeps one pod from being ready, if anything that can be named.
pub fn trouble(pod: &Pod) -> Option<(bool, String)> {
    let status = pod.status.as_ref()?;
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    if let Some(c) = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "PodScheduled" && c.status == "False")
    {
        return Some((
            false,
            format!(
                "no node takes a pod: {}",
                c.message.clone().unwrap_or_else(|| "unschedulable".into())
            ),
        ));
    }
    if status.phase.as_deref() == Some("Failed") {
        let why = status
            .reason
            .clone()
            .or(status.message.clone())
            .unwrap_or_else(|| "its containers ended".into());
        return Some((true, format!("a pod failed: {why}")));
    }
    let containers = status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(status.container_statuses.iter().flatten());
    containers
        .filter_map(container_trouble)
        .max_by_key(|(failed, _)| *failed)
}

fn container_trouble(c: &ContainerStatus) -> Option<(bool, String)> {
    let state = c.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let message = waiting.message.clone().unwrap_or_default();
        return match waiting.reason.as_deref().unwrap_or_default() {
            "ImagePullBackOff" | "ErrImagePull" | "ErrImageNeverPull" => {
                Some((true, format!("cannot pull image {}", c.image)))
            }
            "InvalidImageName" => Some((true, format!("{} is not an image name", c.image))),
            "CrashLoopBackOff" => Some((true, crash_words(c))),
            "CreateContainerConfigError" | "CreateContainerError" => Some((
                true,
                format!("container {} cannot be created: {message}", c.name),
            )),
            "RunContainerError" => Some((
                true,
                format!("container {} cannot be started: {message}", c.name),
            )),
            _ => None,
        };
    }
    if let Some(ended) = state.terminated.as_ref().filter(|t| t.exit_code != 0) {
        let why = ended.reason.as_deref().unwrap_or("Error");
        return Some((
            false,
            format!(
                "container {} ended with code {} ({why})",
                c.name, ended.exit_code
            ),
        ));
    }
    (state.running.is_some() && !c.ready).then(|| {
        (
            false,
            format!(
                "container {} runs but does not answer its readiness probe yet",
                c.name
            ),
        )
    })
}

fn crash_words(c: &ContainerStatus) -> String {
    let last = c.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    match last {
        Some(t) if t.reason.as_deref() == Some("OOMKilled") => format!(
            "container {} runs out of memory and keeps being restarted",
            c.name
        ),
        Some(t) => format!(
            "container {} keeps crashing (exit code {}, {} restarts)",
            c.name, t.exit_code, c.restart_count
        ),
        None => format!(
            "container {} keeps crashing ({} restarts)",
            c.name, c.restart_count
        ),
    }
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
            (
                Verdict::Progressing,
                "1 of 3 pods ready: no node takes a pod: 0/1 nodes".into()
            )
        );
        assert_eq!(
            said(&[]),
            (
                Verdict::Progressing,
                "1 of 3 pods ready: pods are starting".into()
            )
        );
    }
}
