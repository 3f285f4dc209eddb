//! What is written under `status` (contract §1.4), and when: only when something of it differs.

use super::{plan::Fault, readiness::Rollout};
use crate::cluster::{ServiceDefinition, ServiceDefinitionStatus, same_conditions, set_conditions};
use jiff::Timestamp;
use svcforge_app::domain::Verdict;

/// What a pass came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// Applied, and this is what runs.
    Applied(Rollout),
    /// Paused by annotation: nothing was applied, and this is what runs.
    Paused(Rollout, String),
    /// It cannot be honoured; so many pods of what was before are available.
    Refused(Vec<Fault>, i32),
    /// The API server will not take what it comes to; so many pods of what was before are available.
    Rejected(String, i32),
    /// It could not be applied yet, and why; so many pods of what was before are available.
    Waiting(String, i32),
}

/// The status after a pass. `now` only dates conditions that change.
pub fn status(of: &ServiceDefinition, seen: &Seen, now: Timestamp) -> ServiceDefinitionStatus {
    let old = of.status.clone().unwrap_or_default();
    let (ready, available, phase, reason, message) = match seen {
        Seen::Applied(r) if r.ready => (true, r.available, "Ready", "Serving", None),
        Seen::Applied(r) => {
            let (phase, reason) = match r.verdict {
                Verdict::Failed => ("Failed", "RolloutFailed"),
                Verdict::ScaledToZero => ("Pending", "ScaledToZero"),
                Verdict::Paused => ("Pending", "DeploymentPaused"),
                _ => ("Pending", "RollingOut"),
            };
            (false, r.available, phase, reason, Some(r.sentence.clone()))
        }
        Seen::Paused(r, why) => {
            let phase = if r.ready { "Ready" } else { "Pending" };
            let message = match r.ready {
                true => why.clone(),
                false => format!("{why}; {}", r.sentence),
            };
            (r.ready, r.available, phase, "Paused", Some(message))
        }
        Seen::Refused(faults, available) => {
            let all: Vec<String> = faults.iter().map(ToString::to_string).collect();
            (false, *available, "Failed", "Invalid", Some(all.join("; ")))
        }
        Seen::Waiting(why, available) => (
            false,
            *available,
            "Pending",
            "NotApplied",
            Some(why.clone()),
        ),
        Seen::Rejected(why, available) => (
            false,
            *available,
            "Failed",
            "Rejected",
            Some(format!("the API server refuses what it comes to: {why}")),
        ),
    };
    let failed = phase == "Failed";
    let moving = reason == "RollingOut";
    ServiceDefinitionStatus {
        ready,
        available_replicas: available,
        phase: phase.into(),
        conditions: set_conditions(
            &old.conditions,
            [ready, moving, failed],
            reason,
            message.as_deref().unwrap_or("the current spec is serving"),
            of.metadata.generation,
            now,
        ),
        message,
        observed_generation: of.metadata.generation,
    }
}

/// Whether there is anything to write.
pub fn differs(old: Option<&ServiceDefinitionStatus>, new: &ServiceDefinitionStatus) -> bool {
    let Some(old) = old else { return true };
    (
        old.ready,
        old.available_replicas,
        &old.phase,
        &old.message,
        old.observed_generation,
    ) != (
        new.ready,
        new.available_replicas,
        &new.phase,
        &new.message,
        new.observed_generation,
    ) || !same_conditions(&old.conditions, &new.conditions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(status: Option<ServiceDefinitionStatus>) -> ServiceDefinition {
        let mut of: ServiceDefinition = serde_json::from_value(
            json!({"metadata": {"name": "web", "generation": 3}, "spec": {"image": "x"}}),
        )
        .expect("a definition");
        of.status = status;
        of
    }

    fn seen(ready: bool, verdict: Verdict, sentence: &str) -> Seen {
        Seen::Applied(Rollout {
            ready,
            available: 2,
            verdict,
            sentence: sentence.into(),
        })
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn phases_and_their_words() {
        let fault = Fault {
            path: "spec.port".into(),
            detail: "must be between 1 and 65535".into(),
        };
        for (seen, phase, message, conditions) in [
            (
                seen(true, Verdict::Complete, "2 of 2 pods ready"),
                "Ready",
                None,
                [false, false, true],
            ),
            (
                seen(false, Verdict::Progressing, "pods are starting"),
                "Pending",
                Some("pods are starting"),
                [false, true, false],
            ),
            (
                seen(false, Verdict::Failed, "cannot pull image x"),
                "Failed",
                Some("cannot pull image x"),
                [true, false, false],
            ),
            (
                seen(false, Verdict::ScaledToZero, "scaled to zero"),
                "Pending",
                Some("scaled to zero"),
                [false, false, false],
            ),
            (
                Seen::Refused(vec![fault], 2),
                "Failed",
                Some("spec.port must be between 1 and 65535"),
                [true, false, false],
            ),
            (
                Seen::Rejected("no".into(), 2),
                "Failed",
                Some("the API server refuses what it comes to: no"),
                [true, false, false],
            ),
        ] {
            let new = status(&definition(None), &seen, at(0));
            assert_eq!(
                (new.phase.as_str(), new.message.as_deref()),
                (phase, message)
            );
            assert_eq!(new.observed_generation, Some(3));
            assert_eq!(new.ready, phase == "Ready");
            assert_eq!(new.available_replicas, 2, "even when it is not ready");
            let is: Vec<bool> = new.conditions.iter().map(|c| c.status == "True").collect();
            assert_eq!(is, conditions, "Degraded, Progressing, Ready");
        }
    }

    #[test]
    fn nothing_is_written_while_nothing_differs() {
        let ready = seen(true, Verdict::Complete, "");
        let first = status(&definition(None), &ready, at(0));
        assert!(differs(None, &first), "a new object gets its first status");
        let again = status(&definition(Some(first.clone())), &ready, at(60));
        assert!(!differs(Some(&first), &again));
        let mut shuffled = first.clone();
        shuffled.conditions.reverse();
        let mut others = shuffled.conditions[0].clone();
        others.type_ = "Somebody/Elses".into();
        shuffled.conditions.push(others);
        assert!(!differs(Some(&shuffled), &again));
        for other in [
            seen(false, Verdict::Progressing, "pods are starting"),
            Seen::Applied(Rollout {
                ready: true,
                available: 3,
                verdict: Verdict::Complete,
                sentence: String::new(),
            }),
        ] {
            assert!(differs(
                Some(&first),
                &status(&definition(Some(first.clone())), &other, at(60))
            ));
        }
    }
}
