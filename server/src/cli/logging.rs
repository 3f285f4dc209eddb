//! JSON lines: the event's name in `event`, fields at top level.

use std::{fs::File, sync::Mutex};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

fn filter(level: &str) -> EnvFilter {
    // kube tells every lost connection as an error of its own; what it means is told by who asked.
    let level = if level.contains('=') {
        level.to_owned()
    } else {
        format!("{level},kube_client=off,sqlx::postgres::notice=off")
    };
    EnvFilter::try_new(level).unwrap_or_else(|_| EnvFilter::new("info"))
}

/// Logs to stdout.
pub fn to_stdout(level: &str) {
    let json = fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false);
    let _ = tracing_subscriber::registry()
        .with(filter(level))
        .with(json)
        .try_init();
}

/// Logs to a file, for `up`, whose terminal is for people.
pub fn to_file(level: &str, file: File) {
    let json = fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_writer(Mutex::new(file));
    let _ = tracing_subscriber::registry()
        .with(filter(level))
        .with(json)
        .try_init();
}
