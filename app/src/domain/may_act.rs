//! What svcforge may do now: one pure function, asked by claim, API, portal and tick alike. Its table is design §12's; the test
//! below is that table.

use super::window::Window;
use jiff::Timestamp;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// The machine moves an instance to the catalog's version.
    Upgrade,
    /// A person moves one there.
    PersonUpgrade,
    /// Re-provision of what is gone.
    Repair,
    /// A person's change, retry or rollback.
    PersonChange,
    /// Removal at the end of its life.
    Expiry,
    /// A person removes it.
    Delete,
    /// A new instance.
    Install,
}

/// Every row.
pub const ACTS: [Act; 7] = [
    Act::Upgrade,
    Act::PersonUpgrade,
    Act::Repair,
    Act::PersonChange,
    Act::Expiry,
    Act::Delete,
    Act::Install,
];

impl Act {
    /// The word used in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Upgrade => "upgrade",
            Self::PersonUpgrade => "person_upgrade",
            Self::Repair => "repair",
            Self::PersonChange => "person_change",
            Self::Expiry => "expiry",
            Self::Delete => "delete",
            Self::Install => "install",
        }
    }

    /// The row of that word.
    pub fn parse(word: &str) -> Option<Self> {
        ACTS.into_iter().find(|a| a.as_str() == word)
    }
}

/// What is known of the moment. Everything but `security` stands in the way when it is there.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The time.
    pub now: Timestamp,
    /// Why its type, or everything, is halted.
    pub halted: Option<String>,
    /// Why there is no free slot.
    pub full: Option<String>,
    /// Its maintenance window, as written.
    pub window: Option<String>,
    /// Whether the target closes a hole.
    pub security: bool,
    /// Why a person has pinned it.
    pub pinned: Option<(String, Timestamp)>,
    /// Why svcforge holds it.
    pub held: Option<String>,
    /// Why it is paused.
    pub paused: Option<String>,
    /// Why the brake on repairs is on.
    pub braked: Option<String>,
    /// Why svcforge only reads.
    pub recovery: Option<String>,
    /// Whether it may not be removed.
    pub protected: Option<String>,
    /// Whose it is, when not ours.
    pub foreign: Option<String>,
    /// Why it is not complete: an upgrade would be blamed for it.
    pub incomplete: Option<String>,
    /// For a new instance: whether the newest revision that runs complete somewhere is known.
    pub proven: bool,
}

/// What the table says, with a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Now.
    Go,
    /// Now, but the asker is told.
    Warn(String),
    /// Not yet: why, and when if that is known.
    Wait {
        /// The sentence.
        why: String,
        /// The time.
        until: Option<Timestamp>,
    },
    /// Not at all, unless something else changes first.
    Refuse(String),
}

fn wait(why: &str) -> Ruling {
    Ruling::Wait {
        why: why.to_owned(),
        until: None,
    }
}

/// The table: what stands first in the way. A refusal comes before a wait, one that a person must end before one that ends by itself.
pub fn may_act(act: Act, facts: &Facts) -> Ruling {
    obstacles(act, facts)
        .into_iter()
        .next()
        .unwrap_or(Ruling::Go)
}

/// Everything that stands in the way, in that order.
pub fn obstacles(act: Act, facts: &Facts) -> Vec<Ruling> {
    use Act::{Delete, Expiry, Install, PersonUpgrade, Repair, Upgrade};
    let mut found = vec![];
    if let Some(owner) = &facts.foreign {
        found.push(Ruling::Refuse(format!("it is not svcforge's: {owner}")));
    }
    if let (Delete, Some(why)) = (act, &facts.protected) {
        found.push(Ruling::Refuse(format!("it is protected: {why}")));
    }
    if let Some(why) = &facts.recovery {
        match act {
            Install => found.push(Ruling::Refuse(format!("svcforge recovers: {why}"))),
            Upgrade | Repair | Expiry => found.push(wait(&format!("svcforge recovers: {why}"))),
            _ => {}
        }
    }
    if let Some(why) = &facts.halted {
        match act {
            Upgrade => found.push(wait(why)),
            PersonUpgrade => found.push(Ruling::Refuse(why.clone())),
            Install if !facts.proven => found.push(Ruling::Warn(why.clone())),
            _ => {}
        }
    }
    let pinned = facts
        .pinned
        .as_ref()
        .map(|(why, until)| (why, Some(*until)));
    let held = facts.held.as_ref().map(|why| (why, None));
    for (why, until) in pinned.into_iter().chain(held) {
        match act {
            Upgrade => found.push(Ruling::Wait {
                why: why.clone(),
                until,
            }),
            PersonUpgrade => found.push(Ruling::Refuse(why.clone())),
            _ => {}
        }
    }
    if let (Upgrade | Repair | Expiry, Some(why)) = (act, &facts.paused) {
        found.push(wait(why));
    }
    if let (Repair, Some(why)) = (act, &facts.braked) {
        found.push(wait(why));
    }
    if act == Upgrade {
        found.extend(closed(facts));
        if let Some(why) = &facts.incomplete {
            found.push(wait(&format!(
                "set aside, since it does not serve as it is: {why}"
            )));
        }
    }
    if let (Upgrade | PersonUpgrade, Some(why)) = (act, &facts.full) {
        found.push(wait(why));
    }
    found
}

/// Whether its window keeps the machine out. One that cannot be read keeps out a security upgrade, too.
fn closed(facts: &Facts) -> Option<Ruling> {
    let text = facts.window.as_deref()?;
    let window = match Window::parse(text) {
        Ok(window) => window,
        Err(why) => {
            return Some(wait(&format!(
                "its maintenance window {text:?} cannot be read: it {why}"
            )));
        }
    };
    if facts.security || window.is_open(facts.now) {
        return None;
    }
    Some(match window.opening_in_words(facts.now) {
        Some((until, words)) => Ruling::Wait {
            why: format!("window opens {words}"),
            until: Some(until),
        },
        None => wait("its window never opens"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns: halt, cap, window, pin, hold, pause, brake, recovery, protected, not ours. g go, w wait, r refuse.
    const TABLE: [(Act, &str); 6] = [
        (Act::Upgrade, "wwwwwwgwgr"),
        (Act::PersonUpgrade, "rwgrrggggr"),
        (Act::Repair, "gggggwwwgr"),
        (Act::PersonChange, "gggggggggr"),
        (Act::Expiry, "gggggwgwgr"),
        (Act::Delete, "ggggggggrr"),
    ];

    fn with(column: usize) -> Facts {
        let why = || Some("because".to_owned());
        let mut facts = Facts {
            now: "2026-12-01T12:00:00Z".parse().expect("a time"),
            ..Facts::default()
        };
        match column {
            0 => facts.halted = why(),
            1 => facts.full = why(),
            2 => facts.window = Some("daily 02:00-03:00".into()),
            3 => facts.pinned = Some(("because".into(), facts.now)),
            4 => facts.held = why(),
            5 => facts.paused = why(),
            6 => facts.braked = why(),
            7 => facts.recovery = why(),
            8 => facts.protected = why(),
            _ => facts.foreign = why(),
        }
        facts
    }

    fn letter(ruling: &Ruling) -> char {
        match ruling {
            Ruling::Go => 'g',
            Ruling::Warn(_) => '!',
            Ruling::Wait { .. } => 'w',
            Ruling::Refuse(_) => 'r',
        }
    }

    #[test]
    fn the_table_of_design_12_holds() {
        for (act, row) in TABLE {
            assert_eq!(Act::parse(act.as_str()), Some(act));
            let got: String = (0..10).map(|c| letter(&may_act(act, &with(c)))).collect();
            assert_eq!(got, row, "{act:?}");
            assert_eq!(
                may_act(act, &Facts::default()),
                Ruling::Go,
                "{act:?} with nothing in the way"
            );
        }
    }

    #[test]
    fn a_new_instance_is_warned_of_a_halt_unless_something_proven_runs() {
        let row: String = (0..10)
            .map(|c| letter(&may_act(Act::Install, &with(c))))
            .collect();
        assert_eq!(row, "!ggggggrgr");
        let proven = Facts {
            proven: true,
            ..with(0)
        };
        assert_eq!(may_act(Act::Install, &proven), Ruling::Go);
    }

    #[test]
    fn a_security_upgrade_is_excused_from_the_window_and_nothing_else() {
        for column in 0..10 {
            let plain = may_act(Act::Upgrade, &with(column));
            let security = may_act(
                Act::Upgrade,
                &Facts {
                    security: true,
                    ..with(column)
                },
            );
            assert_eq!(
                security == Ruling::Go,
                column == 2 || plain == Ruling::Go,
                "column {column}"
            );
        }
        let unreadable = Facts {
            window: Some("whenever".into()),
            security: true,
            ..Facts::default()
        };
        assert!(
            matches!(may_act(Act::Upgrade, &unreadable), Ruling::Wait { why, until: None } if why.contains("whenever"))
        );
    }

    #[test]
    fn a_window_says_when_and_a_pin_says_until_when() {
        let ruling = may_act(Act::Upgrade, &with(2));
        let opens = "2026-12-02T02:00:00Z".parse().expect("a time");
        assert!(matches!(ruling, Ruling::Wait { until: Some(t), .. } if t == opens));
        assert!(matches!(
            may_act(Act::Upgrade, &with(3)),
            Ruling::Wait { until: Some(_), .. }
        ));
    }

    #[test]
    fn an_instance_that_does_not_serve_is_set_aside_by_the_machine_only() {
        let facts = Facts {
            incomplete: Some("0 of 1 ready".into()),
            ..Facts::default()
        };
        assert!(matches!(may_act(Act::Upgrade, &facts), Ruling::Wait { .. }));
        assert_eq!(may_act(Act::PersonUpgrade, &facts), Ruling::Go);
    }
}
