//! What keeps pods from being ready, in one plain sentence: container and pod states, and what an admission refused.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use std::borrow::Borrow;

/// Longest sentence from elsewhere, characters.
const MOST: usize = 300;

/// The worst trouble among pods: whether it is final without a change, and in words.
pub fn trouble_of<P: Borrow<Pod>>(pods: &[P]) -> Option<(bool, String)> {
    pods.iter()
        .filter_map(|p| trouble(p.borrow()))
        // By the sentence, too: the same whoever looks, in whatever order.
        .max()
}

/// Somebody else's words as part of a sentence: one line, no trailing full stop, of bounded length.
pub fn plain(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.trim_end_matches('.');
    if line.chars().count() <= MOST {
        return line.into();
    }
    line.chars().take(MOST).chain(['…']).collect()
}

/// Why pods are not even made, from the Deployment's `ReplicaFailure`.
pub fn refusal(message: &str) -> String {
    let after = |mark: &str| {
        message
            .split_once(mark)
            .map(|(_, rest)| plain(rest.trim_start_matches([':', ' '])))
    };
    if let Some(rest) = after("exceeded quota") {
        format!("the namespace's quota is used up ({rest})")
    } else if let Some(rest) = after("violates PodSecurity") {
        format!("the namespace's Pod Security refuses the pod ({rest})")
    } else if let Some(rest) = after("failed quota") {
        format!("the namespace's quota wants more to be said ({rest})")
    } else if message.contains("LimitRange")
        || message.contains("usage per Container is")
        || message.contains("usage per Pod is")
    {
        let rest = after("is forbidden").unwrap_or_else(|| plain(message));
        format!("the namespace's limits refuse the pod ({rest})")
    } else if message.contains("serviceaccount") && message.contains("not found") {
        format!("its service account is missing ({})", plain(message))
    } else if let Some(rest) = after("admission webhook") {
        format!("an admission webhook refuses the pod ({rest})")
    } else {
        format!("pods are refused: {}", plain(message))
    }
}

/// What keeps one pod from being ready, if anything that can be named.
pub fn trouble(pod: &Pod) -> Option<(bool, String)> {
    let status = pod.status.as_ref()?;
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let condition = |kind: &str| status.conditions.iter().flatten().find(|c| c.type_ == kind);
    if status.phase.as_deref() == Some("Failed") {
        let said = status.message.as_deref().map(plain).unwrap_or_default();
        // Its owner makes another: what it ended of is no verdict on that one.
        return Some((
            false,
            ended_pod(status.reason.as_deref().unwrap_or_default(), &said),
        ));
    }
    if status.phase.as_deref() == Some("Unknown") {
        return Some((
            false,
            "nothing is heard from the node that a pod runs on".into(),
        ));
    }
    if let Some(c) = condition("PodScheduled").filter(|c| c.status == "False") {
        let said = c.message.as_deref().map(plain).unwrap_or_default();
        return Some(match c.reason.as_deref() {
            Some("SchedulingGated") => (false, "a pod is held back by a scheduling gate".into()),
            _ if said.is_empty() => (true, "no node takes a pod".into()),
            // A claim that has just been made.
            _ => (
                !said.contains("PersistentVolumeClaim"),
                format!("no node takes a pod: {said}"),
            ),
        });
    }
    // A container that only prepares has no readiness probe to answer.
    let preparing = status.init_container_statuses.iter().flatten();
    let preparing = preparing.filter(|c| c.state.as_ref().is_none_or(|s| s.running.is_none()));
    let containers = preparing.chain(status.container_statuses.iter().flatten());
    let container = containers.filter_map(container_trouble).max();
    container.or_else(|| {
        condition("PodReadyToStartContainers")
            .filter(|c| c.status == "False")
            .map(|_| {
                (
                    false,
                    "a pod's network and volumes are being set up".to_owned(),
                )
            })
    })
}

fn ended_pod(reason: &str, said: &str) -> String {
    let because = |text: &str| match said {
        "" => text.to_owned(),
        said => format!("{text}: {said}"),
    };
    match reason {
        "Evicted" => because("a pod was evicted from its node"),
        "DeadlineExceeded" => "a pod ran past its deadline".into(),
        "NodeShutdown" | "Terminated" => "a pod's node was shut down".into(),
        "NodeLost" => "a pod's node was lost".into(),
        "NodeAffinity" => "a pod's node does not match what it asks for any more".into(),
        "Preempting" | "Preempted" => because("a pod had to make room for a more important one"),
        "UnexpectedAdmissionError" => because("a pod's node refused it"),
        "OutOfcpu" | "OutOfmemory" | "OutOfpods" => because("a pod's node had no room for it"),
        "" => because("a pod failed"),
        other => because(&format!("a pod failed ({other})")),
    }
}

fn container_trouble(c: &ContainerStatus) -> Option<(bool, String)> {
    let state = c.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let said = waiting.message.as_deref().map(plain).unwrap_or_default();
        return waiting_words(c, waiting.reason.as_deref().unwrap_or_default(), &said);
    }
    let loops = loops(c);
    if let Some(ended) = &state.terminated {
        let once = match ended.exit_code {
            0 => return None,
            _ if loops => return Some((true, crash_words(c))),
            _ => ended_words(ended),
        };
        return Some((false, format!("container {} {once}", c.name)));
    }
    (state.running.is_some() && !c.ready).then(|| {
        if loops {
            let crashes = crash_words(c);
            return (
                true,
                format!("{crashes}; it runs again, but does not answer its readiness probe yet"),
            );
        }
        let again = match c.restart_count {
            0 => String::new(),
            n => format!(" (restarted {n} times)"),
        };
        (
            false,
            format!(
                "container {} runs but does not answer its readiness probe yet{again}",
                c.name
            ),
        )
    })
}

/// Whether a container crashes over and over, wherever in that it is just now: it was restarted more than once, and both its last run and
/// this one are shorter than what the kubelet takes for well (ten minutes, after which its pauses begin anew).
fn loops(c: &ContainerStatus) -> bool {
    let ended = |t: &ContainerStateTerminated| {
        let (from, to) = (t.started_at.as_ref()?, t.finished_at.as_ref()?);
        Some(to.0.duration_since(from.0))
    };
    let last = c.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    let this = c
        .state
        .as_ref()
        .and_then(|s| match (&s.running, &s.terminated) {
            (Some(running), _) => {
                let from = running.started_at.as_ref()?;
                Some(crate::clock::now().duration_since(from.0))
            }
            (None, terminated) => ended(terminated.as_ref()?),
        });
    let short = |run: Option<jiff::SignedDuration>| run.is_some_and(|r| r.as_secs() < 600);
    c.restart_count >= 2 && short(last.and_then(ended)) && short(this)
}

fn waiting_words(c: &ContainerStatus, reason: &str, said: &str) -> Option<(bool, String)> {
    let because = |text: String| match said {
        "" => text,
        said => format!("{text}: {said}"),
    };
    Some(match reason {
        "ImagePullBackOff" | "ErrImagePull" => (true, pull_words(&c.image, said)),
        "ErrImageNeverPull" => (
            true,
            format!(
                "image {} is not on the node, and may not be pulled",
                c.image
            ),
        ),
        "InvalidImageName" => (true, format!("{} is not an image name", c.image)),
        "ImageInspectError" => (
            true,
            because(format!("image {} cannot be inspected", c.image)),
        ),
        "RegistryUnavailable" => (
            false,
            format!("the registry of image {} does not answer", c.image),
        ),
        "SignatureValidationFailed" => (
            true,
            format!("the signature of image {} is not accepted", c.image),
        ),
        "CrashLoopBackOff" => (true, crash_words(c)),
        "CreateContainerConfigError" if said.contains("runAsNonRoot") => (
            true,
            format!(
                "image {} wants to run as root, which is not allowed",
                c.image
            ),
        ),
        "CreateContainerConfigError" if said.contains("not found") => (
            true,
            format!(
                "container {} needs something that is missing: {said}",
                c.name
            ),
        ),
        "CreateContainerConfigError" | "CreateContainerError" => (
            true,
            because(format!("container {} cannot be created", c.name)),
        ),
        "RunContainerError" | "StartError" => (
            true,
            because(format!("container {} cannot be started", c.name)),
        ),
        "PreCreateHookError" | "PreStartHookError" | "PostStartHookError" => (
            true,
            because(format!("a hook of container {} failed", c.name)),
        ),
        "ContainerCreating" | "PodInitializing" | "" => return None,
        other => (
            false,
            because(format!("container {} waits ({other})", c.name)),
        ),
    })
}

fn pull_words(image: &str, said: &str) -> String {
    // An image's own name or digest may say anything.
    let low = said.replace(image, "").to_lowercase();
    let why = if low.contains("unauthorized")
        || low.contains("denied")
        || low.contains("403 forbidden")
    {
        ": the registry refuses access"
    } else if low.contains("not found") || low.contains("manifest unknown") {
        ": the registry does not have it"
    } else if low.contains("no such host") || low.contains("timeout") || low.contains("refused") {
        ": the registry cannot be reached"
    } else if low.contains("toomanyrequests") || low.contains("rate limit") {
        ": the registry's rate limit is reached"
    } else {
        ""
    };
    format!("cannot pull image {image}{why}")
}

fn ended_words(ended: &ContainerStateTerminated) -> String {
    match ended.reason.as_deref() {
        Some("OOMKilled") => "ran out of memory".into(),
        Some("ContainerCannotRun" | "StartError") => format!(
            "cannot be started: {}",
            plain(
                ended
                    .message
                    .as_deref()
                    .unwrap_or("its command cannot be run")
            )
        ),
        Some("DeadlineExceeded") => "ran past its deadline".into(),
        _ => match ended.signal {
            Some(signal) => format!("was ended by signal {signal}"),
            None => format!("ended with exit code {}", ended.exit_code),
        },
    }
}

fn crash_words(c: &ContainerStatus) -> String {
    let last = c.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    match last {
        Some(t) if t.reason.as_deref() == Some("OOMKilled") => format!(
            "container {} runs out of memory and keeps being restarted",
            c.name
        ),
        Some(t) if t.exit_code == 0 => format!(
            "container {} keeps ending by itself (exit code 0, {} restarts)",
            c.name, c.restart_count
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

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).expect("a Pod")
    }

    fn container(state: Value, last: Value, restarts: i32) -> Pod {
        pod(json!({"phase": "Pending", "containerStatuses": [{
            "name": "app", "image": "ghcr.io/x:1", "imageID": "", "ready": false, "restartCount": restarts, "state": state, "lastState": last}]}))
    }

    fn waits(reason: &str, message: &str) -> Pod {
        container(
            json!({"waiting": {"reason": reason, "message": message}}),
            json!({}),
            0,
        )
    }

    fn crashes(code: i32, reason: &str) -> Pod {
        container(
            json!({"waiting": {"reason": "CrashLoopBackOff"}}),
            json!({"terminated": {"exitCode": code, "reason": reason}}),
            4,
        )
    }

    fn again(state: Value, lasted_s: i64) -> Pod {
        let at = |s: i64| jiff::Timestamp::from_second(s).expect("a time").to_string();
        let last =
            json!({"terminated": {"exitCode": 2, "startedAt": at(0), "finishedAt": at(lasted_s)}});
        container(state, last, 3)
    }

    fn ended(terminated: Value) -> Pod {
        container(json!({"terminated": terminated}), json!({}), 0)
    }

    fn scheduled(reason: &str, message: &str) -> Pod {
        pod(
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]}),
        )
    }

    fn failed(reason: &str, message: &str) -> Pod {
        pod(json!({"phase": "Failed", "reason": reason, "message": message}))
    }

    /// C25: one plain sentence a state, at least 25 states.
    #[test]
    fn every_state_has_one_plain_sentence() {
        let just_now = crate::clock::now().to_string();
        #[rustfmt::skip]
        let table: Vec<(Pod, bool, &str)> = vec![
            (waits("ErrImagePull", ""), true, "cannot pull image ghcr.io/x:1"),
            (waits("ImagePullBackOff", "Back-off pulling image: unauthorized"), true, "cannot pull image ghcr.io/x:1: the registry refuses access"),
            (waits("ImagePullBackOff", "ghcr.io/x:1: not found"), true, "cannot pull image ghcr.io/x:1: the registry does not have it"),
            (waits("ErrImagePull", "dial tcp: lookup ghcr.io: no such host"), true, "cannot pull image ghcr.io/x:1: the registry cannot be reached"),
            (waits("ErrImagePull", "toomanyrequests: slow down"), true, "cannot pull image ghcr.io/x:1: the registry's rate limit is reached"),
            (waits("ErrImageNeverPull", ""), true, "image ghcr.io/x:1 is not on the node, and may not be pulled"),
            (waits("InvalidImageName", ""), true, "ghcr.io/x:1 is not an image name"),
            (waits("ImageInspectError", "bad layer."), true, "image ghcr.io/x:1 cannot be inspected: bad layer"),
            (waits("RegistryUnavailable", ""), false, "the registry of image ghcr.io/x:1 does not answer"),
            (waits("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"), true, "image ghcr.io/x:1 wants to run as root, which is not allowed"),
            (waits("CreateContainerConfigError", "secret \"a\" not found"), true, "container app needs something that is missing: secret \"a\" not found"),
            (waits("CreateContainerError", "no command"), true, "container app cannot be created: no command"),
            (waits("RunContainerError", "exec: \"x\": not found"), true, "container app cannot be started: exec: \"x\": not found"),
            (waits("PostStartHookError", ""), true, "a hook of container app failed"),
            (waits("SomethingNew", ""), false, "container app waits (SomethingNew)"),
            (crashes(137, "OOMKilled"), true, "container app runs out of memory and keeps being restarted"),
            (crashes(2, "Error"), true, "container app keeps crashing (exit code 2, 4 restarts)"),
            (crashes(0, "Completed"), true, "container app keeps ending by itself (exit code 0, 4 restarts)"),
            (ended(json!({"exitCode": 137, "reason": "OOMKilled"})), false, "container app ran out of memory"),
            (ended(json!({"exitCode": 1, "reason": "Error"})), false, "container app ended with exit code 1"),
            (ended(json!({"exitCode": 139, "signal": 11})), false, "container app was ended by signal 11"),
            (ended(json!({"exitCode": 128, "reason": "StartError", "message": "no such file"})), false, "container app cannot be started: no such file"),
            (container(json!({"running": {}}), json!({}), 0), false, "container app runs but does not answer its readiness probe yet"),
            (container(json!({"running": {}}), json!({}), 3), false, "container app runs but does not answer its readiness probe yet (restarted 3 times)"),
            (again(json!({"running": {"startedAt": just_now}}), 30), true, "container app keeps crashing (exit code 2, 3 restarts); it runs again, but does not answer its readiness probe yet"),
            (again(json!({"terminated": {"exitCode": 2, "startedAt": just_now, "finishedAt": just_now}}), 30), true, "container app keeps crashing (exit code 2, 3 restarts)"),
            (again(json!({"running": {"startedAt": just_now}}), 86_400), false, "container app runs but does not answer its readiness probe yet (restarted 3 times)"),
            (again(json!({"running": {"startedAt": "2020-01-01T00:00:00Z"}}), 30), false, "container app runs but does not answer its readiness probe yet (restarted 3 times)"),
            (scheduled("Unschedulable", "0/3 nodes are available: 3 Insufficient cpu."), true, "no node takes a pod: 0/3 nodes are available: 3 Insufficient cpu"),
            (scheduled("Unschedulable", "pod has unbound immediate PersistentVolumeClaims"), false, "no node takes a pod: pod has unbound immediate PersistentVolumeClaims"),
            (waits("ErrImagePull", "ghcr.io/x:1: something else"), true, "cannot pull image ghcr.io/x:1"),
            (scheduled("SchedulingGated", ""), false, "a pod is held back by a scheduling gate"),
            (failed("Evicted", "The node was low on resource: memory."), false, "a pod was evicted from its node: The node was low on resource: memory"),
            (failed("DeadlineExceeded", ""), false, "a pod ran past its deadline"),
            (failed("NodeShutdown", ""), false, "a pod's node was shut down"),
            (failed("NodeLost", ""), false, "a pod's node was lost"),
            (failed("Preempting", ""), false, "a pod had to make room for a more important one"),
            (failed("UnexpectedAdmissionError", "no devices"), false, "a pod's node refused it: no devices"),
            (failed("OutOfmemory", ""), false, "a pod's node had no room for it"),
            (failed("", ""), false, "a pod failed"),
            (pod(json!({"phase": "Unknown"})), false, "nothing is heard from the node that a pod runs on"),
            (pod(json!({"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}]})), false, "a pod's network and volumes are being set up"),
        ];
        assert!(table.len() >= 25);
        for (pod, failed, sentence) in &table {
            assert_eq!(trouble(pod), Some((*failed, (*sentence).to_owned())));
            assert!(!sentence.contains('\n') && !sentence.ends_with('.'));
        }
        assert_eq!(
            trouble(&again(
                json!({"terminated": {"exitCode": 0, "startedAt": just_now, "finishedAt": just_now}}),
                30
            )),
            None,
            "an init container that has done its work"
        );
        for quiet in ["ContainerCreating", "PodInitializing"] {
            assert_eq!(trouble(&waits(quiet, "")), None);
        }
    }

    #[test]
    fn refusals_name_who_refuses() {
        for (message, sentence) in [
            (
                "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3",
                "the namespace's quota is used up (q, requested: pods=1, used: pods=3, limited: pods=3)",
            ),
            (
                "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false",
                "the namespace's Pod Security refuses the pod (\"restricted:latest\": allowPrivilegeEscalation != false)",
            ),
            (
                "pods \"a\" is forbidden: maximum memory usage per Container is 64Mi, but limit is 256Mi",
                "the namespace's limits refuse the pod (maximum memory usage per Container is 64Mi, but limit is 256Mi)",
            ),
            (
                "pods \"a\" is forbidden: error looking up service account n/x: serviceaccount \"x\" not found",
                "its service account is missing (pods \"a\" is forbidden: error looking up service account n/x: serviceaccount \"x\" not found)",
            ),
            (
                "admission webhook \"w\" denied the request: no",
                "an admission webhook refuses the pod (\"w\" denied the request: no)",
            ),
            ("something else", "pods are refused: something else"),
        ] {
            assert_eq!(refusal(message), sentence);
        }
        assert!(refusal(&"x".repeat(5000)).chars().count() < 400);
    }
}
