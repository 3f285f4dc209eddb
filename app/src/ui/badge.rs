//! A state as word, shape and colour: never by colour alone.

use crate::domain::Verdict;
use leptos::prelude::*;

/// The word for a verdict.
pub fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Complete => "serving",
        Verdict::ScaledToZero => "scaled to zero",
        Verdict::Paused => "paused",
        Verdict::Progressing => "settling",
        Verdict::Failed => "unhealthy",
        Verdict::Unknown => "unknown",
    }
}

fn tone(word: &str) -> &'static str {
    match word {
        "ready" | "serving" | "succeeded" | "active" => "good",
        "failed" | "unhealthy" | "halted" | "degraded" => "bad",
        "requested" | "provisioning" | "upgrading" | "deleting" | "settling" | "running"
        | "queued" => "busy",
        _ => "calm",
    }
}

/// The badge.
#[component]
pub fn Badge(
    /// What it says.
    word: &'static str,
) -> impl IntoView {
    view! { <span class=format!("badge {}", tone(word))>{word}</span> }
}
