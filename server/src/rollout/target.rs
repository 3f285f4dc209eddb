//! What a new target means for those that run something else: some must not move before a person has looked.

use crate::catalog::{Data, Entry, RolloutMode};
use semver::Version;

/// Why a rollout to this entry starts halted, if it does; with its counts. `running` are versions and how many instances run them.
pub fn must_halt(entry: &Entry, running: &[(String, i64)]) -> Option<String> {
    let target = &entry.chart_version;
    let others: Vec<&(String, i64)> = running.iter().filter(|(v, _)| v != target).collect();
    let count = |picked: &[&(String, i64)]| picked.iter().map(|(_, n)| n).sum::<i64>();
    let total = count(&others);
    if total == 0 {
        return None;
    }
    let Ok(to) = Version::parse(target) else {
        return Some(format!(
            "{target} cannot be compared with what {total} instances run"
        ));
    };
    let picked = |wrong: &dyn Fn(&Version) -> bool| -> Vec<&(String, i64)> {
        others
            .iter()
            .copied()
            .filter(|(v, _)| Version::parse(v).is_ok_and(|v| wrong(&v)))
            .collect()
    };
    let newer = picked(&|v| *v > to);
    if !newer.is_empty() {
        return Some(format!(
            "a downgrade: {target} is lower than what {} run ({})",
            instances(count(&newer)),
            versions(&newer)
        ));
    }
    let breaks = match entry.breaking {
        Some(breaking) => breaking,
        None => {
            entry.data == Data::Persistent
                && others
                    .iter()
                    .any(|(v, _)| Version::parse(v).is_ok_and(|v| v.major != to.major))
        }
    };
    if breaks {
        return Some(format!(
            "{target} may break what {} run ({})",
            instances(total),
            versions(&others)
        ));
    }
    (entry.rollout == RolloutMode::Manual).then(|| {
        format!(
            "its rollout is manual: {} wait for {target} ({})",
            instances(total),
            versions(&others)
        )
    })
}

fn instances(n: i64) -> String {
    if n == 1 {
        "1 instance".into()
    } else {
        format!("{n} instances")
    }
}

fn versions(of: &[&(String, i64)]) -> String {
    of.iter()
        .map(|(v, n)| format!("{n} on {v}"))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(version: &str, more: &str) -> Entry {
        let text =
            format!("type: x\nkind: helm\ntitle: X\nsummary: x\nchart_version: {version}\n{more}");
        serde_saphyr::from_str(&text).expect("an entry")
    }

    fn running(of: &[(&str, i64)]) -> Vec<(String, i64)> {
        of.iter().map(|(v, n)| ((*v).to_owned(), *n)).collect()
    }

    #[test]
    fn downgrades_breaks_and_manual_ones_start_halted() {
        let halted = |version: &str, more: &str, of: &[(&str, i64)]| {
            must_halt(&entry(version, more), &running(of))
        };
        assert_eq!(
            halted("1.1.0", "", &[("1.0.0", 3)]),
            None,
            "an ordinary step"
        );
        assert_eq!(
            halted("1.0.0", "rollout: manual", &[("1.0.0", 3)]),
            None,
            "nothing to do"
        );
        let down = halted("1.0.0", "", &[("1.1.0", 2), ("0.9.0", 1)]).expect("a downgrade");
        assert!(down.contains("2 instances run (2 on 1.1.0)"), "{down}");
        assert!(
            halted("2.0.0", "data: persistent", &[("1.4.0", 1)])
                .is_some_and(|w| w.contains("1 instance"))
        );
        assert_eq!(
            halted("2.0.0", "data: scratch", &[("1.4.0", 1)]),
            None,
            "nothing that lasts"
        );
        assert_eq!(
            halted(
                "2.0.0",
                "data: persistent\nbreaking: false",
                &[("1.4.0", 1)]
            ),
            None,
            "its author knows better"
        );
        assert!(halted("1.4.1", "breaking: true", &[("1.4.0", 1)]).is_some());
        assert!(
            halted("1.1.0", "rollout: manual", &[("1.0.0", 4)])
                .is_some_and(|w| w.contains("4 instances wait for 1.1.0"))
        );
        assert!(
            halted("1.1.0-rc.1", "", &[("1.1.0", 1)]).is_some(),
            "a pre-release is lower"
        );
    }
}
