//! Where an instance stands towards the catalog: one function says *why not yet, and when* for portal, API and tick.

use super::{
    InstanceState,
    may_act::{Act, Facts, Ruling, obstacles},
    rollout::{Upgrade, UpgradeStatus},
};
use jiff::Timestamp;

/// Its upgrade task, where one waits or runs.
#[derive(Clone, Debug)]
pub struct OpenUpgrade {
    /// Whether a worker holds it.
    pub running: bool,
    /// Not before.
    pub run_after: Timestamp,
    /// The row of the table it falls under; none for a change that is no upgrade of the version.
    pub act: Option<Act>,
    /// Whether it has started before: it holds its slot between attempts.
    pub started: bool,
}

/// What is known of it.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Its state.
    pub state: InstanceState,
    /// What it runs.
    pub version: String,
    /// What the catalog offers; none when it has left.
    pub target: Option<String>,
    /// Whether it runs another revision than the catalog's.
    pub outdated: bool,
    /// Its upgrade.
    pub task: Option<OpenUpgrade>,
    /// What stands in the way.
    pub facts: Facts,
    /// How many stand before it, where that was counted.
    pub ahead: Option<i64>,
}

fn ordinal(n: i64) -> String {
    let suffix = match (n % 10, n % 100) {
        (1, x) if x != 11 => "st",
        (2, x) if x != 12 => "nd",
        (3, x) if x != 13 => "rd",
        _ => "th",
    };
    format!("{n}{suffix}")
}

/// Why not yet, and when.
pub fn explain(standing: &Standing) -> Upgrade {
    let says = |status, why: String, next_at| Upgrade {
        status,
        why: Some(why),
        next_at,
    };
    let to = standing.target.clone().unwrap_or_default();
    if let Some(task) = &standing.task {
        if task.running {
            return says(UpgradeStatus::Running, "under way".into(), None);
        }
        if task.started && task.run_after > standing.facts.now && standing.facts.halted.is_none() {
            return says(
                UpgradeStatus::Waiting,
                format!("between attempts at {to}"),
                Some(task.run_after),
            );
        }
    }
    if !standing.outdated || standing.target.is_none() {
        return Upgrade::default();
    }
    if matches!(
        standing.state,
        InstanceState::Deleting | InstanceState::Deleted
    ) {
        return Upgrade::default();
    }
    if standing.state != InstanceState::Ready && standing.task.is_none() {
        return says(
            UpgradeStatus::Held,
            format!(
                "{to} is on offer: the machine upgrades only what is ready, it is {}",
                standing.state
            ),
            None,
        );
    }
    let act = standing
        .task
        .as_ref()
        .and_then(|t| t.act)
        .unwrap_or(Act::Upgrade);
    let found = obstacles(act, &standing.facts);
    // Whatever has no end of its own needs a person (or the catalog) first.
    let needs_person = standing.facts.halted.is_some()
        || standing.facts.held.is_some()
        || standing.facts.recovery.is_some();
    let mut words: Vec<String> = vec![];
    let mut next_at = None;
    for ruling in found {
        match ruling {
            Ruling::Wait { why, until } => {
                next_at = next_at.max(until);
                words.push(why);
            }
            Ruling::Refuse(why) | Ruling::Warn(why) => words.push(why),
            Ruling::Go => {}
        }
    }
    if let Some(ahead @ 1..) = standing.ahead {
        words.push(format!("{} in line", ordinal(ahead + 1)));
    }
    if needs_person {
        return says(UpgradeStatus::Held, words.join(" · "), None);
    }
    if words.is_empty() {
        words.push("its turn comes as slots are free".into());
    }
    says(UpgradeStatus::Waiting, words.join(" · "), next_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> Standing {
        Standing {
            state: InstanceState::Ready,
            version: "1.0.0".into(),
            target: Some("1.1.0".into()),
            outdated: true,
            task: None,
            facts: Facts {
                now: "2026-12-02T00:00:00Z".parse().expect("a time"),
                ..Facts::default()
            },
            ahead: None,
        }
    }

    #[test]
    fn every_reason_is_said_with_its_when() {
        let mut s = standing();
        s.facts.window = Some("Sat 02:00-05:00 Europe/Berlin".into());
        s.facts.halted = Some("halted by ana 10:02: bad chart".into());
        s.ahead = Some(1);
        let said = explain(&s);
        assert_eq!(said.status, UpgradeStatus::Held);
        assert_eq!(
            said.why.as_deref(),
            Some(
                "halted by ana 10:02: bad chart · window opens Sat 02:00 Europe/Berlin (in 3 d) · 2nd in line"
            )
        );
        s.facts.halted = None;
        let said = explain(&s);
        assert_eq!(said.status, UpgradeStatus::Waiting);
        assert_eq!(
            said.next_at,
            Some("2026-12-05T01:00:00Z".parse().expect("a time"))
        );
    }

    #[test]
    fn nothing_is_said_where_there_is_nothing_to_do() {
        let current = Standing {
            outdated: false,
            ..standing()
        };
        assert_eq!(explain(&current), Upgrade::default());
        assert_eq!(explain(&standing()).status, UpgradeStatus::Waiting);
        let failed = Standing {
            state: InstanceState::Failed,
            ..standing()
        };
        assert_eq!(explain(&failed).status, UpgradeStatus::Held);
    }

    #[test]
    fn ordinals() {
        let said: Vec<String> = [1, 2, 3, 4, 11, 12, 13, 21, 112].map(ordinal).into();
        assert_eq!(
            said,
            [
                "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"
            ]
        );
    }
}
