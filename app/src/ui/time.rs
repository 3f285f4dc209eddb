//! Times: UTC from the server, so that both sides draw the same; relative once the browser has a clock.

use crate::domain::time::Timestamp;
use crate::live::Live;
use leptos::prelude::*;

fn utc(at: Timestamp) -> String {
    // 2026-11-30T22:31:05.123Z → 2026-11-30 22:31 UTC
    let text = at.to_string();
    match text.split_once('T') {
        Some((day, time)) => format!("{day} {} UTC", time.get(..5).unwrap_or(time)),
        None => text,
    }
}

/// A span in words, from seconds.
fn words(seconds: f64) -> String {
    let s = seconds.round();
    match s {
        s if s < 60.0 => format!("{s} s"),
        s if s < 3600.0 => format!("{} min", (s / 60.0).round()),
        s if s < 172_800.0 => format!("{} h", (s / 3600.0).round()),
        s => format!("{} d", (s / 86_400.0).round()),
    }
}

fn relative(at: Timestamp, now_ms: f64) -> String {
    let ago = (now_ms - at.as_millisecond() as f64) / 1000.0;
    match ago {
        a if a.abs() < 5.0 => "just now".into(),
        a if a > 0.0 => format!("{} ago", words(a)),
        a => format!("in {}", words(-a)),
    }
}

/// A moment.
#[component]
pub fn Moment(
    /// When.
    at: Timestamp,
) -> impl IntoView {
    let live = expect_context::<Live>();
    view! { <time datetime=at.to_string() title=utc(at)>{move || live.now.get().map_or_else(|| utc(at), |now| relative(at, now))}</time> }
}

/// How long something took, or has taken.
#[component]
pub fn Span(
    /// Its begin.
    from: Timestamp,
    /// Its end, if over.
    to: Option<Timestamp>,
) -> impl IntoView {
    let live = expect_context::<Live>();
    let text = move || {
        let end = to.map(|t| t.as_millisecond() as f64).or(live.now.get());
        end.map(|end| {
            let seconds = (end - from.as_millisecond() as f64).max(0.0) / 1000.0;
            if seconds < 10.0 {
                format!("{seconds:.1} s")
            } else {
                words(seconds)
            }
        })
    };
    view! { <span class="span">{text}</span> }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_well() {
        let at: Timestamp = "2026-11-30T22:31:05Z".parse().expect("a time");
        let ms = at.as_millisecond() as f64;
        assert_eq!(utc(at), "2026-11-30 22:31 UTC");
        assert_eq!(relative(at, ms + 2_000.0), "just now");
        assert_eq!(relative(at, ms + 90_000.0), "2 min ago");
        assert_eq!(relative(at, ms - 7_200_000.0), "in 2 h");
    }
}
