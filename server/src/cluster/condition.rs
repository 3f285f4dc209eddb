//! Conditions of our resources, as every Kubernetes tool reads them.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `Ready`, `Progressing` or `Degraded`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, as one word.
    pub reason: String,
    /// Why, as a sentence.
    #[serde(default)]
    pub message: String,
    /// The generation that this speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` last changed.
    pub last_transition_time: String,
}

/// The three conditions from one verdict. The time of each moves only when its status does.
pub fn set_conditions(
    old: &[Condition],
    [ready, progressing, degraded]: [bool; 3],
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let one = |type_: &str, is: bool| {
        let status = if is { "True" } else { "False" };
        let since = old
            .iter()
            .find(|c| c.type_ == type_ && c.status == status)
            .map_or_else(
                || now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                |c| c.last_transition_time.clone(),
            );
        Condition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
            observed_generation: generation,
            last_transition_time: since,
        }
    };
    vec![
        one("Degraded", degraded),
        one("Progressing", progressing),
        one("Ready", ready),
    ]
}

/// Whether every one of `new` is in `old` as it is. Of other types there may be others': those are not ours to say.
pub fn same_conditions(old: &[Condition], new: &[Condition]) -> bool {
    new.iter().all(|one| old.contains(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_moves_only_with_its_status() {
        let at = |s| Timestamp::from_second(s).expect("a time");
        let first = set_conditions(
            &[],
            [false, true, false],
            "Progressing",
            "m",
            Some(1),
            at(0),
        );
        let same = set_conditions(
            &first,
            [false, true, false],
            "Progressing",
            "n",
            Some(2),
            at(9),
        );
        assert!(
            same.iter()
                .all(|c| c.last_transition_time == "1970-01-01T00:00:00Z")
        );
        let done = set_conditions(&same, [true, false, false], "Serving", "", Some(2), at(9));
        let of = |kind: &str| {
            done.iter()
                .find(|c| c.type_ == kind)
                .expect("one")
                .last_transition_time
                .clone()
        };
        assert_eq!(of("Ready"), "1970-01-01T00:00:09Z");
        assert_eq!(of("Degraded"), "1970-01-01T00:00:00Z");
    }
}
