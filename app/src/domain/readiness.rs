//! How well an instance serves: the worst of its parts, in one sentence.

use super::time::Timestamp;
use serde::{Deserialize, Serialize};

/// What the parts add up to. Ordered from best to worst, so that the worst is the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The current spec is serving, all of it.
    Complete,
    /// Scaled to zero on purpose.
    ScaledToZero,
    /// Its rollout is paused.
    Paused,
    /// On its way.
    Progressing,
    /// It cannot get there by itself.
    Failed,
    /// Nobody can tell.
    Unknown,
}

/// One workload, volume or service of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Part {
    /// Kubernetes kind.
    pub kind: String,
    /// Object name.
    pub name: String,
    /// What it adds.
    pub verdict: Verdict,
    /// Why, in words.
    pub sentence: String,
    /// How many are ready.
    pub ready: i32,
    /// How many there should be.
    pub desired: i32,
}

/// Verdict, sentence and parts, with their age.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Readiness {
    /// The worst of the parts.
    pub verdict: Verdict,
    /// One sentence a person understands.
    pub sentence: String,
    /// Worst first.
    pub parts: Vec<Part>,
    /// When it was seen; none if never.
    #[cfg_attr(feature = "ssr", schema(value_type = Option<String>, format = DateTime))]
    pub observed_at: Option<Timestamp>,
}

impl Readiness {
    /// Nobody has looked.
    pub fn unknown(sentence: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Unknown,
            sentence: sentence.into(),
            parts: vec![],
            observed_at: None,
        }
    }

    /// Adds the parts up: worst first, and its sentence is the whole's.
    pub fn of(mut parts: Vec<Part>, at: Timestamp) -> Self {
        parts.sort_by(|a, b| {
            b.verdict
                .cmp(&a.verdict)
                .then_with(|| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)))
        });
        let Some(worst) = parts.first() else {
            return Self {
                observed_at: Some(at),
                ..Self::unknown("Nothing of it is in the cluster")
            };
        };
        let verdict = worst.verdict;
        let sentence = match verdict {
            Verdict::Complete => {
                let (ready, desired) = parts
                    .iter()
                    .fold((0, 0), |(r, d), p| (r + p.ready, d + p.desired));
                match desired {
                    1 => "Serving: its pod is ready".into(),
                    _ => format!("Serving: {ready} of {desired} pods ready"),
                }
            }
            _ => format!("{} {}: {}", worst.kind, worst.name, worst.sentence),
        };
        Self {
            verdict,
            sentence,
            parts,
            observed_at: Some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, verdict: Verdict) -> Part {
        Part {
            kind: "Deployment".into(),
            name: name.into(),
            verdict,
            sentence: name.into(),
            ready: 1,
            desired: 1,
        }
    }

    #[test]
    fn the_worst_part_speaks_for_all() {
        let at = Timestamp::UNIX_EPOCH;
        let whole = Readiness::of(
            vec![part("a", Verdict::Complete), part("b", Verdict::Failed)],
            at,
        );
        assert_eq!(
            (whole.verdict, whole.sentence.as_str()),
            (Verdict::Failed, "Deployment b: b")
        );
        let fine = Readiness::of(
            vec![part("a", Verdict::Complete), part("b", Verdict::Complete)],
            at,
        );
        assert_eq!(
            (fine.verdict, fine.sentence.as_str()),
            (Verdict::Complete, "Serving: 2 of 2 pods ready")
        );
        assert_eq!(Readiness::of(vec![], at).verdict, Verdict::Unknown);
    }
}
