//! What drift means, without I/O: verdicts over a listing, repairs within their brakes, and whose an unknown release is.

use crate::{
    cluster::{Listing, Seen},
    db::drift::{Budget, Detail, Known, SeenOrphan},
};
use std::collections::{BTreeSet, HashSet};
use svcforge_app::domain::{Act, EntryKind, Facts, Ruling, may_act};
use uuid::Uuid;

/// Repairs of one instance within a day that did not stick: then a person is asked.
pub const MOST_REPAIRS: i64 = 5;

/// What was found of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// As it was installed.
    Present,
    /// Not in the listing; to be confirmed by a read of its own.
    Missing(String),
    /// Its newest revision is somebody else's.
    Changed {
        /// That revision, if it can be accepted: none when somebody replaced the whole.
        revision: Option<i32>,
        /// In words.
        detail: String,
    },
    /// Nothing is known of it.
    Unknown(String),
}

/// By what findings are judged.
#[derive(Clone, Copy, Debug)]
pub struct Eyes<'a> {
    /// Whose releases are ours.
    pub installation: &'a str,
    /// Seconds since the epoch.
    pub now: i64,
    /// How long an interrupted removal may be a person at work, seconds.
    pub patience: i64,
}

/// Compares one instance with what is seen of its release.
pub fn judge_seen(known: &Known, seen: Option<&Seen>, eyes: Eyes<'_>) -> Finding {
    let Some(seen) = seen else {
        return Finding::Missing(format!(
            "release {} is not in namespace {}",
            known.release, known.namespace
        ));
    };
    match seen.status.as_str() {
        "uninstalled" => {
            return Finding::Missing(format!(
                "release {} was uninstalled; only its history is left",
                known.release
            ));
        }
        "uninstalling" => {
            // Recovery finishes it, once it cannot be a person's own Helm any more. A definition's removal the cluster finishes itself.
            let age = seen.modified_at.map_or(i64::MAX, |at| eyes.now - at);
            return if age > eyes.patience && known.kind == EntryKind::Helm {
                Finding::Missing(format!(
                    "the removal of release {} was begun and never finished",
                    known.release
                ))
            } else {
                Finding::Unknown(format!("somebody is removing release {}", known.release))
            };
        }
        _ => {}
    }
    let what = match known.kind {
        EntryKind::Helm => "revision",
        EntryKind::ServiceDefinition => "generation",
    };
    let another = known.uid.is_some() && known.uid != seen.uid;
    match known.revision {
        // Numbers begin anew with what replaced it.
        Some(_) if seen.installation.as_deref() != Some(eyes.installation) => Finding::Changed {
            revision: None,
            detail: format!(
                "somebody replaced it: {what} {} is not labelled as svcforge's",
                seen.revision
            ),
        },
        Some(_) if another => Finding::Changed {
            revision: None,
            detail: format!(
                "somebody replaced it: {} is another object of that name",
                known.release
            ),
        },
        Some(ours) if seen.revision > ours => Finding::Changed {
            revision: Some(seen.revision),
            detail: format!(
                "{what} {} was not written by svcforge, whose newest is {ours}",
                seen.revision
            ),
        },
        _ => Finding::Present,
    }
}

/// Compares one instance with a listing.
pub fn judge(known: &Known, listing: &Listing, eyes: Eyes<'_>) -> Finding {
    if known.kind == EntryKind::ServiceDefinition
        && let Some(why) = &listing.unknown_definitions
    {
        return Finding::Unknown(why.clone());
    }
    if let Some(why) = listing.unknown.get(&known.namespace) {
        return Finding::Unknown(format!(
            "namespace {} could not be listed: {why}",
            known.namespace
        ));
    }
    let place = (known.namespace.clone(), known.release.clone());
    if let Some(why) = listing.unreadable.get(&place) {
        return Finding::Unknown(why.clone());
    }
    judge_seen(known, listing.releases.get(&place), eyes)
}

/// Who is repaired, who is kept back, and by which brake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Now.
    pub now: Vec<Uuid>,
    /// More than an hour may repair: an admin is asked.
    pub braked: Vec<Uuid>,
    /// Repaired too often without sticking: a person is asked.
    pub not_sticking: Vec<Uuid>,
    /// Released by an admin, but not in this tick: paced.
    pub paced: Vec<Uuid>,
}

/// Who of those that are gone is repaired: at most max(3, 20 %) of the ready ones an hour; what an admin has released at most as
/// many a tick.
pub fn plan_repairs(gone: &[Detail], budget: &Budget) -> Repairs {
    let most = (budget.ready / 5).max(3);
    let mut left = (most - budget.used).max(0);
    let mut pace = most;
    let released: BTreeSet<Uuid> = budget.released.iter().copied().collect();
    let mut plan = Repairs::default();
    for one in gone.iter().filter(|d| !d.busy) {
        if one.repairs >= MOST_REPAIRS {
            plan.not_sticking.push(one.id);
            continue;
        }
        let facts = Facts {
            paused: one.paused.clone(),
            ..Facts::default()
        };
        if may_act(Act::Repair, &facts) != Ruling::Go {
            continue;
        }
        if released.contains(&one.id) {
            if pace > 0 {
                pace -= 1;
                plan.now.push(one.id);
            } else {
                plan.paced.push(one.id);
            }
        } else if left > 0 {
            left -= 1;
            plan.now.push(one.id);
        } else {
            plan.braked.push(one.id);
        }
    }
    plan
}

/// Releases that no instance knows, by name and namespace: orphans where svcforge manages, else foreign or unmanaged.
pub fn unknown_releases(known: &[Known], listing: &Listing, installation: &str) -> Vec<SeenOrphan> {
    let ours: HashSet<(&str, &str)> = known
        .iter()
        .map(|k| (k.namespace.as_str(), k.release.as_str()))
        .collect();
    let mut found: Vec<SeenOrphan> = listing
        .releases
        .iter()
        .filter(|((namespace, name), _)| !ours.contains(&(namespace.as_str(), name.as_str())))
        .filter(|(_, seen)| !matches!(seen.status.as_str(), "uninstalled"))
        .map(|((namespace, name), seen)| {
            let kind = match seen.installation.as_deref() {
                Some(of) if of == installation => "orphan",
                Some(_) => "foreign",
                None if listing.managed.contains(namespace) => "orphan",
                None => "unmanaged",
            };
            SeenOrphan {
                release: name.clone(),
                namespace: namespace.clone(),
                kind,
                owner: match (&seen.installation, &seen.instance) {
                    (Some(of), Some(instance)) => {
                        format!("instance {instance} of installation {of}")
                    }
                    (Some(of), None) => format!("installation {of}"),
                    _ => String::new(),
                },
            }
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn eyes(now: i64, patience: i64) -> Eyes<'static> {
        Eyes {
            installation: "me",
            now,
            patience,
        }
    }

    fn known(revision: Option<i32>) -> Known {
        Known {
            id: Uuid::from_u128(1),
            ready: true,
            kind: EntryKind::Helm,
            release: "db".into(),
            namespace: "ns".into(),
            revision,
            uid: None,
            verdict: None,
        }
    }

    fn seen(revision: i32, status: &str) -> Seen {
        Seen {
            kind: EntryKind::Helm,
            revision,
            uid: None,
            status: status.into(),
            installation: Some("me".into()),
            instance: None,
            modified_at: Some(1000),
        }
    }

    fn listing(of: &[(&str, &str, Seen)]) -> Listing {
        Listing {
            releases: of
                .iter()
                .map(|(ns, n, s)| (((*ns).to_owned(), (*n).to_owned()), s.clone()))
                .collect(),
            ..Listing::default()
        }
    }

    #[test]
    fn the_highest_revision_decides() {
        let judged = |revision, status: &str, at| {
            judge_seen(
                &known(Some(3)),
                Some(&seen(revision, status)),
                eyes(at, 300),
            )
        };
        for status in [
            "deployed",
            "failed",
            "pending-install",
            "pending-upgrade",
            "pending-rollback",
            "superseded",
        ] {
            assert_eq!(judged(3, status, 2000), Finding::Present, "{status}");
            assert_eq!(
                judged(2, status, 2000),
                Finding::Present,
                "an attempt recorded 3 and died before it wrote: {status}"
            );
            assert!(
                matches!(
                    judged(4, status, 2000),
                    Finding::Changed {
                        revision: Some(4),
                        ..
                    }
                ),
                "{status}"
            );
        }
        assert!(matches!(
            judged(3, "uninstalled", 2000),
            Finding::Missing(_)
        ));
        assert!(
            matches!(judged(3, "uninstalling", 1100), Finding::Unknown(_)),
            "a person at work"
        );
        assert!(
            matches!(judged(3, "uninstalling", 2000), Finding::Missing(_)),
            "for recovery"
        );
        assert!(matches!(
            judge_seen(&known(Some(3)), None, eyes(0, 0)),
            Finding::Missing(_)
        ));
        assert_eq!(
            judge_seen(&known(None), Some(&seen(9, "deployed")), eyes(0, 0)),
            Finding::Present,
            "made before revisions were recorded"
        );
        for replaced in [None, Some("another".to_owned())] {
            let other = Seen {
                installation: replaced,
                ..seen(3, "deployed")
            };
            assert!(
                matches!(
                    judge_seen(&known(Some(3)), Some(&other), eyes(0, 0)),
                    Finding::Changed { revision: None, .. }
                ),
                "uninstalled and installed by hand: its numbers begin anew"
            );
        }
        let definition = |uid: &str| Seen {
            uid: Some(uid.into()),
            ..seen(1, "deployed")
        };
        let applied = Known {
            uid: Some("a".into()),
            ..known(Some(1))
        };
        let found = |uid: &str| judge_seen(&applied, Some(&definition(uid)), eyes(0, 0));
        assert_eq!(found("a"), Finding::Present);
        assert!(
            matches!(found("b"), Finding::Changed { revision: None, .. }),
            "a definition that was replaced, labels and all"
        );
    }

    #[test]
    fn a_part_that_could_not_be_read_makes_only_itself_unknown() {
        let mut l = listing(&[]);
        l.unreadable =
            BTreeMap::from([(("ns".to_owned(), "db".to_owned()), "odd label".to_owned())]);
        assert_eq!(
            judge(&known(None), &l, eyes(0, 0)),
            Finding::Unknown("odd label".into())
        );
        let mut l = listing(&[]);
        l.unknown.insert("ns".into(), "forbidden".into());
        assert!(
            matches!(judge(&known(None), &l, eyes(0, 0)), Finding::Unknown(w) if w.contains("forbidden"))
        );
        let mut l = listing(&[]);
        l.unknown.insert("other".into(), "forbidden".into());
        l.unknown_definitions = Some("no CRD".into());
        assert!(matches!(
            judge(&known(None), &l, eyes(0, 0)),
            Finding::Missing(_)
        ));
        let definition = Known {
            kind: EntryKind::ServiceDefinition,
            ..known(None)
        };
        assert_eq!(
            judge(&definition, &l, eyes(0, 0)),
            Finding::Unknown("no CRD".into())
        );
    }

    fn gone(n: u128) -> Detail {
        Detail {
            id: Uuid::from_u128(n),
            team_id: Uuid::nil(),
            team: "t".into(),
            name: "n".into(),
            release: "r".into(),
            namespace: "ns".into(),
            paused: None,
            busy: false,
            repairs: 0,
            held: false,
        }
    }

    fn budget(ready: i64, used: i64) -> Budget {
        Budget {
            ready,
            used,
            released: vec![],
            asked: vec![],
        }
    }

    #[test]
    fn no_more_than_the_larger_of_three_and_a_fifth_an_hour() {
        let all: Vec<Detail> = (0..50).map(gone).collect();
        let count = |ready, used| {
            let plan = plan_repairs(&all, &budget(ready, used));
            (plan.now.len(), plan.braked.len())
        };
        assert_eq!(count(50, 0), (10, 40));
        assert_eq!(count(10, 0), (3, 47));
        assert_eq!(count(10, 2), (1, 49));
        assert_eq!(count(10, 9), (0, 50));
        assert_eq!(count(1000, 0), (50, 0));
    }

    #[test]
    fn a_release_covers_its_list_and_is_paced() {
        let all: Vec<Detail> = (0..12).map(gone).collect();
        let plan = plan_repairs(
            &all,
            &Budget {
                released: (0..10).map(Uuid::from_u128).collect(),
                ..budget(10, 3)
            },
        );
        assert_eq!(
            (plan.now.len(), plan.paced.len(), plan.braked.len()),
            (3, 7, 2)
        );
    }

    #[test]
    fn what_does_not_stick_what_is_paused_and_what_is_busy() {
        let mut all: Vec<Detail> = (0..3).map(gone).collect();
        all[0].repairs = MOST_REPAIRS;
        all[1].paused = Some("paused".into());
        all[2].busy = true;
        let plan = plan_repairs(&all, &budget(100, 0));
        assert_eq!(plan.not_sticking, [all[0].id]);
        assert!(plan.now.is_empty() && plan.braked.is_empty());
    }

    #[test]
    fn whose_an_unknown_release_is() {
        let with = |installation: Option<&str>| Seen {
            installation: installation.map(str::to_owned),
            ..seen(1, "deployed")
        };
        let mut l = listing(&[
            ("ns", "db", with(Some("me"))),
            ("z", "a", with(Some("me"))),
            ("b", "a", with(None)),
            ("ours", "c", with(None)),
            ("b", "d", with(Some("you"))),
        ]);
        l.managed.insert("ours".into());
        let found: Vec<(String, String, &str)> = unknown_releases(&[known(None)], &l, "me")
            .into_iter()
            .map(|o| (o.release, o.namespace, o.kind))
            .collect();
        let expected = [
            ("a", "b", "unmanaged"),
            ("a", "z", "orphan"),
            ("c", "ours", "orphan"),
            ("d", "b", "foreign"),
        ]
        .map(|(r, n, k)| (r.to_owned(), n.to_owned(), k));
        assert_eq!(
            found, expected,
            "sorted by name and namespace; what an instance knows is none"
        );
    }
}
