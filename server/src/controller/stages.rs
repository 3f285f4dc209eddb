//! The stages of a Workflow as a graph (contract §1.6): pure. Which may be created, which wait for whom, and what is wrong with the whole.

use crate::cluster::{
    ServiceDefinition, Stage, StageStatus, Workflow, WorkflowStatus, same_conditions,
    set_conditions, trouble::plain,
};
use jiff::Timestamp;
use kube::{ResourceExt, core::DeserializeGuard};
use std::collections::{BTreeMap, BTreeSet};

/// Longest name of a stage's ServiceDefinition.
pub(super) const LONGEST: usize = 63;

/// Stages that can be worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph<'a> {
    /// Name of the ServiceDefinition, and the stage, in the order of the spec.
    pub stages: Vec<(String, &'a Stage)>,
}

/// What a same-named object is.
#[derive(Clone, Debug, PartialEq)]
pub enum Child {
    /// There is none.
    Missing,
    /// The Workflow's own.
    Ours(Box<ServiceDefinition>),
    /// Somebody else's: never adopted, never overwritten.
    Foreign(String),
    /// The Workflow's own, in a form that cannot be read.
    Malformed(String),
}

/// What a stage needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageNeed {
    /// Its turn has come.
    Create,
    /// It lives: never gated again, only updated.
    Update,
    /// These are not ready yet.
    Wait(Vec<String>),
    /// What has its name is another's, or cannot be read.
    Taken(String),
}

/// Checks the stages as a whole.
///
/// # Errors
/// In words, with the names: nothing may be changed then.
pub fn graph<'a>(workflow: &str, stages: &'a [Stage]) -> Result<Graph<'a>, String> {
    let mut names = BTreeSet::new();
    for (i, stage) in stages.iter().enumerate() {
        if !names.insert(stage.name.as_str()) {
            return Err(format!(
                "spec.stages[{i}].name {} is there twice",
                stage.name
            ));
        }
        let child = format!("{workflow}-{}", stage.name);
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if child.len() > LONGEST {
            return Err(format!(
                "spec.stages[{i}].name {} is too long: {child} would have {} characters, {LONGEST} are allowed",
                stage.name,
                child.len()
            ));
        }
        if !child.chars().all(good)
            || child.ends_with('-')
            || !child.starts_with(|c: char| c.is_ascii_lowercase())
        {
            return Err(format!(
                "spec.stages[{i}].name {} cannot be used: {child} must consist of a-z, 0-9 and '-', begin with a letter and end with a letter or digit",
                stage.name
            ));
        }
    }
    for (i, stage) in stages.iter().enumerate() {
        if let Some(unknown) = stage
            .depends_on
            .iter()
            .find(|d| !names.contains(d.as_str()))
        {
            return Err(format!(
                "spec.stages[{i}].dependsOn: stage {} depends on {unknown}, which is no stage",
                stage.name
            ));
        }
    }
    if let Some(cycle) = cycle(stages) {
        return Err(format!(
            "the stages depend on each other in a circle: {}",
            cycle.join(" -> ")
        ));
    }
    Ok(Graph {
        stages: stages
            .iter()
            .map(|s| (format!("{workflow}-{}", s.name), s))
            .collect(),
    })
}

/// One circle, closed: `a -> b -> a`.
fn cycle(stages: &[Stage]) -> Option<Vec<String>> {
    let after: BTreeMap<&str, &Stage> = stages.iter().map(|s| (s.name.as_str(), s)).collect();
    let mut done = BTreeSet::new();
    for start in stages {
        // Depth first without recursion: the path, and how many dependencies of each have been looked at.
        let mut path: Vec<(&str, usize)> = vec![(&start.name, 0)];
        while let Some((name, next)) = path.last_mut() {
            let name = *name;
            if done.contains(name) {
                path.pop();
                continue;
            }
            let Some(dependency) = after.get(name).and_then(|s| s.depends_on.get(*next)) else {
                done.insert(name);
                path.pop();
                continue;
            };
            *next += 1;
            if let Some(at) = path.iter().position(|(n, _)| n == dependency) {
                let mut circle: Vec<String> =
                    path[at..].iter().map(|(n, _)| (*n).to_owned()).collect();
                circle.push(dependency.clone());
                return Some(circle);
            }
            path.push((dependency, 0));
        }
    }
    None
}

impl Graph<'_> {
    /// What each stage needs, by the children as they are.
    pub fn needs(&self, children: &BTreeMap<String, Child>) -> Vec<StageNeed> {
        let ready: BTreeSet<&str> = self
            .stages
            .iter()
            .filter(
                |(child, _)| matches!(children.get(child), Some(Child::Ours(c)) if c.is_ready()),
            )
            .map(|(_, stage)| stage.name.as_str())
            .collect();
        self.stages
            .iter()
            .map(|(child, stage)| match children.get(child) {
                Some(Child::Ours(_)) => StageNeed::Update,
                Some(Child::Foreign(owner)) => StageNeed::Taken(format!(
                    "{child} exists and is not this Workflow's ({owner}): remove it or rename the stage"
                )),
                Some(Child::Malformed(error)) => StageNeed::Taken(format!(
                    "{child} is malformed: {error}. Correct it, or remove it to have it made anew"
                )),
                Some(Child::Missing) | None => {
                    let waits: Vec<String> = stage
                        .depends_on
                        .iter()
                        .filter(|d| !ready.contains(d.as_str()))
                        .cloned()
                        .collect();
                    match waits.is_empty() {
                        true => StageNeed::Create,
                        false => StageNeed::Wait(waits),
                    }
                }
            })
            .collect()
    }

    /// How each stage is.
    fn statuses(
        &self,
        needs: &[StageNeed],
        children: &BTreeMap<String, Child>,
        refused: &BTreeMap<String, String>,
    ) -> Vec<StageStatus> {
        self.stages
            .iter()
            .zip(needs)
            .map(|((child, stage), need)| {
                if let Some(why) = refused.get(child) {
                    let why = format!("the API server refuses it: {}", plain(why));
                    return StageStatus {
                        name: stage.name.clone(),
                        ready: false,
                        phase: "Failed".into(),
                        message: Some(why),
                    };
                }
                let (ready, phase, message) = match (need, children.get(child)) {
                    (StageNeed::Taken(why), _) => (false, "Failed".into(), Some(why.clone())),
                    (StageNeed::Wait(on), _) => (
                        false,
                        "Waiting".into(),
                        Some(format!("waits for {}", on.join(", "))),
                    ),
                    (_, Some(Child::Ours(of))) => {
                        let status = of.status.clone().unwrap_or_default();
                        let phase = match status.phase.is_empty() {
                            true => "Pending".to_owned(),
                            false => status.phase,
                        };
                        let old = status.observed_generation < of.metadata.generation;
                        match (of.is_ready(), old && of.status.is_some()) {
                            (true, _) => (true, phase, None),
                            // Its status speaks of an older spec: that one's failure may have been mended.
                            (false, true) => (
                                false,
                                "Pending".into(),
                                Some("the change has not been taken up yet".into()),
                            ),
                            (false, false) => (false, phase, status.message),
                        }
                    }
                    _ => (false, "Pending".into(), Some("is being created".into())),
                };
                StageStatus {
                    name: stage.name.clone(),
                    ready,
                    phase,
                    message,
                }
            })
            .collect()
    }

    /// The status of a whole that could be worked on.
    pub fn status(
        &self,
        of: &Workflow,
        needs: &[StageNeed],
        children: &BTreeMap<String, Child>,
        refused: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> WorkflowStatus {
        let stages = self.statuses(needs, children, refused);
        let ready = stages.iter().filter(|s| s.ready).count();
        let worst = |phase: &str| {
            stages
                .iter()
                .find(|s| s.phase == phase && !s.ready)
                .map(|s| {
                    format!(
                        "stage {}: {}",
                        s.name,
                        s.message.as_deref().unwrap_or("is not ready")
                    )
                })
        };
        let taken = needs
            .iter()
            .zip(&stages)
            .find_map(|(need, stage)| match need {
                StageNeed::Taken(why) => Some(format!("stage {}: {why}", stage.name)),
                _ => None,
            });
        let (phase, message) = if stages.is_empty() {
            ("Pending", Some("it has no stages".to_owned()))
        } else if ready == stages.len() {
            ("Ready", None)
        } else if taken.is_some() {
            ("Degraded", taken)
        } else if let Some(why) = worst("Failed") {
            ("Failed", Some(why))
        } else {
            ("Pending", worst("Pending").or_else(|| worst("Waiting")))
        };
        whole(
            of,
            phase,
            format!("{ready}/{}", stages.len()),
            message,
            stages,
            now,
        )
    }
}

/// The status of one that cannot be worked on (`Degraded`), or not yet (`Pending`): what its stages were stays as it was.
pub fn held(of: &Workflow, phase: &str, why: &str, now: Timestamp) -> WorkflowStatus {
    let old = of.status.clone().unwrap_or_default();
    let progress = match old.progress.is_empty() {
        true => format!("0/{}", of.spec.stages.len()),
        false => old.progress,
    };
    whole(of, phase, progress, Some(why.into()), old.stages, now)
}

/// Whether there is anything to write.
pub fn differs(old: Option<&WorkflowStatus>, new: &WorkflowStatus) -> bool {
    let Some(old) = old else { return true };
    let told = WorkflowStatus {
        conditions: new.conditions.clone(),
        ..old.clone()
    };
    told != *new || !same_conditions(&old.conditions, &new.conditions)
}

fn whole(
    of: &Workflow,
    phase: &str,
    progress: String,
    message: Option<String>,
    stages: Vec<StageStatus>,
    now: Timestamp,
) -> WorkflowStatus {
    let old = of
        .status
        .as_ref()
        .map(|s| s.conditions.as_slice())
        .unwrap_or_default();
    let is = [
        phase == "Ready",
        phase == "Pending" && !stages.is_empty(),
        matches!(phase, "Failed" | "Degraded"),
    ];
    WorkflowStatus {
        ready: phase == "Ready",
        phase: phase.into(),
        progress,
        conditions: set_conditions(
            old,
            is,
            match phase {
                "Ready" => "Serving",
                "Failed" => "StageFailed",
                "Degraded" => "Invalid",
                _ => "StagesPending",
            },
            message.as_deref().unwrap_or("every stage is ready"),
            of.metadata.generation,
            now,
        ),
        message,
        observed_generation: of.metadata.generation,
        stages,
    }
}

/// Whose an object is, towards a Workflow.
pub fn child_of(workflow_uid: &str, found: Option<DeserializeGuard<ServiceDefinition>>) -> Child {
    let Some(found) = found else {
        return Child::Missing;
    };
    let owner = found
        .owner_references()
        .iter()
        .find(|o| o.controller == Some(true));
    match owner {
        Some(owner) if owner.uid == workflow_uid => match found.0 {
            Ok(found) => Child::Ours(Box::new(found)),
            Err(invalid) => Child::Malformed(invalid.error),
        },
        Some(owner) => Child::Foreign(format!("it belongs to {} {}", owner.kind, owner.name)),
        None => Child::Foreign("nothing owns it".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stage(name: &str, depends_on: &[&str]) -> Stage {
        Stage {
            name: name.into(),
            depends_on: depends_on.iter().map(|d| (*d).to_owned()).collect(),
            image: "x".into(),
            ..Stage::default()
        }
    }

    fn child(ready: bool, generation: i64, observed: i64) -> Child {
        Child::Ours(Box::new(
            serde_json::from_value(json!({
                "metadata": {"name": "c", "generation": generation}, "spec": {"image": "x"},
                "status": {"ready": ready, "phase": if ready { "Ready" } else { "Failed" }, "availableReplicas": 0, "observedGeneration": observed, "message": "no"}}))
            .expect("a definition"),
        ))
    }

    fn diamond() -> Vec<Stage> {
        vec![
            stage("a", &[]),
            stage("b", &["a"]),
            stage("c", &["a"]),
            stage("d", &["b", "c"]),
            stage("e", &["d"]),
        ]
    }

    #[test]
    fn a_stage_is_created_when_all_it_depends_on_is_ready_now() {
        let stages = diamond();
        let graph = graph("w", &stages).expect("sound");
        let needs = |ready: &[(&str, Child)]| {
            let children = ready
                .iter()
                .map(|(n, c)| (format!("w-{n}"), c.clone()))
                .collect();
            graph.needs(&children)
        };
        let wait = |on: &[&str]| StageNeed::Wait(on.iter().map(|s| (*s).to_owned()).collect());
        use StageNeed::{Create, Update};
        assert_eq!(
            needs(&[]),
            [
                Create,
                wait(&["a"]),
                wait(&["a"]),
                wait(&["b", "c"]),
                wait(&["d"])
            ]
        );
        assert_eq!(
            needs(&[("a", child(true, 1, 1))]),
            [Update, Create, Create, wait(&["b", "c"]), wait(&["d"])]
        );
        // Ready, but of an older generation.
        assert_eq!(needs(&[("a", child(true, 2, 1))])[1], wait(&["a"]));
        // One side of the diamond fails: what depends on it is held, the rest is not.
        let half = needs(&[
            ("a", child(true, 1, 1)),
            ("b", child(false, 1, 1)),
            ("c", child(true, 1, 1)),
        ]);
        assert_eq!(half, [Update, Update, Update, wait(&["b"]), wait(&["d"])]);
        // What lives is never gated again.
        let late = needs(&[("a", child(false, 1, 1)), ("d", child(true, 1, 1))]);
        assert_eq!(late, [Update, wait(&["a"]), wait(&["a"]), Update, Create]);
    }

    #[test]
    fn what_is_wrong_with_the_whole_is_said_with_names() {
        let said = |stages: &[Stage]| graph("w", stages).expect_err("refused");
        assert_eq!(
            said(&[stage("a", &["c"]), stage("b", &["a"]), stage("c", &["b"])]),
            "the stages depend on each other in a circle: a -> c -> b -> a"
        );
        assert_eq!(
            said(&[stage("a", &["a"])]),
            "the stages depend on each other in a circle: a -> a"
        );
        assert_eq!(
            said(&[stage("a", &["x"])]),
            "spec.stages[0].dependsOn: stage a depends on x, which is no stage"
        );
        assert_eq!(
            said(&[stage("a", &[]), stage("a", &[])]),
            "spec.stages[1].name a is there twice"
        );
        let fits = "a".repeat(61);
        assert!(graph("w", &[stage(&fits, &[])]).is_ok());
        assert!(said(&[stage(&"a".repeat(62), &[])]).contains("64 characters, 63 are allowed"));
        for bad in ["A", "a.b", "a-", "ä"] {
            assert!(said(&[stage(bad, &[])]).contains("cannot be used"), "{bad}");
        }
    }

    #[test]
    fn a_long_chain_is_no_deep_recursion() {
        let mut stages: Vec<Stage> = (0..100).map(|i| stage(&format!("s{i}"), &[])).collect();
        for (i, stage) in stages.iter_mut().enumerate() {
            stage.depends_on = (0..i).map(|d| format!("s{d}")).collect();
        }
        assert!(graph("w", &stages).is_ok());
        stages[0].depends_on = vec!["s99".into()];
        assert!(graph("w", &stages).is_err());
    }

    #[test]
    fn the_whole_is_as_its_stages() {
        let of: Workflow = serde_json::from_value(
            json!({"metadata": {"name": "w", "generation": 4}, "spec": {"stages": []}}),
        )
        .expect("one");
        let stages = vec![stage("a", &[]), stage("b", &["a"])];
        let graph = graph("w", &stages).expect("sound");
        let status = |children: &[(&str, Child)]| {
            let children = children
                .iter()
                .map(|(n, c)| (format!("w-{n}"), c.clone()))
                .collect();
            let s = graph.status(
                &of,
                &graph.needs(&children),
                &children,
                &BTreeMap::new(),
                Timestamp::UNIX_EPOCH,
            );
            (s.phase, s.progress, s.message.unwrap_or_default())
        };
        let said = |phase: &str, progress: &str, message: &str| {
            (phase.to_owned(), progress.to_owned(), message.to_owned())
        };
        assert_eq!(
            status(&[]),
            said("Pending", "0/2", "stage a: is being created")
        );
        assert_eq!(
            status(&[("a", child(true, 1, 1)), ("b", child(true, 1, 1))]),
            said("Ready", "2/2", "")
        );
        assert_eq!(
            status(&[("a", child(false, 1, 1))]),
            said("Failed", "0/2", "stage a: no")
        );
        for of_an_older_spec in [child(false, 2, 1), child(true, 2, 1)] {
            assert_eq!(
                status(&[("a", of_an_older_spec)]),
                said(
                    "Pending",
                    "0/2",
                    "stage a: the change has not been taken up yet"
                )
            );
        }
        let (phase, _, message) = status(&[("a", Child::Malformed("no image".into()))]);
        assert_eq!(phase, "Degraded");
        assert!(
            message.starts_with("stage a: w-a is malformed: no image."),
            "{message}"
        );
        let taken = Child::Foreign("nothing owns it".into());
        let (phase, _, message) = status(&[("a", taken)]);
        assert_eq!(phase, "Degraded");
        assert!(
            message.contains("w-a exists and is not this Workflow's (nothing owns it)"),
            "{message}"
        );
    }
}
