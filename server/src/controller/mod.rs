//! Turns ServiceDefinitions into locked-down Deployments and Services, and Workflows into ServiceDefinitions (contract §1). `plan`,
//! `harden`, `readiness`, `status` and `stages` are pure; `service_definition` and `workflow` act. Needs no database; two at once are harmless.

mod backoff;
mod dormant;
mod harden;
mod passes;
mod plan;
mod readiness;
mod run;
mod service_definition;
mod stages;
mod status;
mod workflow;

use crate::cluster::OF_WORKFLOW;
pub use backoff::Backoff;
pub use harden::{STAMP_VERSION, pod_template};
pub use plan::{Fault, Owned, Plan, plan};
pub use readiness::{Rollout, rollout};
pub use run::{Controller, Pace};
pub use stages::{Graph, StageNeed, graph};
pub use status::{Seen, differs, status};

/// Label that names the ServiceDefinition an object was made from (contract §1.3).
pub const OF: &str = "polychrome.dev/service-definition";
/// Annotation that stops the controller at an object: nothing is applied, the status goes on (N7).
pub const PAUSED: &str = "svcforge.dev/paused";

/// What the API server will not take however often it is asked: a person must change something first.
fn as_refusal(fault: crate::provision::Fault) -> crate::provision::Fault {
    use crate::provision::Fault;
    match fault {
        Fault::Outage { error, .. } | Fault::Failed(error)
            if ["exceeded quota", "denied the request", "denied request"]
                .iter()
                .any(|words| error.contains(words)) =>
        {
            Fault::Rejected(error)
        }
        other => other,
    }
}

const NOT_TAKEN_UP: &str = "the newest spec could not be applied yet";

/// What a status that speaks of an older spec (`told`: its generation, and its message) must say while the newer one cannot be applied.
/// None where it speaks of this one, and of what is not the newest itself.
fn not_taken_up(
    fault: &crate::provision::Fault,
    told: (Option<i64>, Option<&str>),
    generation: Option<i64>,
) -> Option<String> {
    use crate::provision::Fault;
    let stale = matches!(fault, Fault::Outage { what, .. } if what == passes::STALE);
    // What was said of this one may not be the reason any more.
    let said = told.1.is_some_and(|m| m.starts_with(NOT_TAKEN_UP));
    let why = crate::cluster::trouble::plain(&fault.to_string());
    (!stale && (said || told.0 < generation)).then(|| format!("{NOT_TAKEN_UP}: {why}"))
}
