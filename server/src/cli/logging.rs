//! JSON lines: the event's name in `event`, fields at top level.

use std::{fs::File, sync::Mutex};
use tracing_subscriber::{EnvFilter, Layer, fmt, layer::SubscriberExt, util::SubscriberInitExt};

fn filter(level: &str) -> EnvFilter {
    // kube tells every lost connection and every try of a watch as an error of its own; what it means is told once, by who asked.
    let level = if level.contains('=') {
        level.to_owned()
    } else {
        format!("{level},kube_client=off,kube_runtime=off,sqlx::postgres::notice=off")
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
        .with(json.with_filter(filter(level)))
        .with(traces())
        .try_init();
}

/// Spans of our own, whatever the log's level: their ids join request, tick, task and Helm.
fn traces<S>() -> impl tracing_subscriber::Layer<S>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    tracing_opentelemetry::layer()
        .with_tracer(crate::telemetry::tracer())
        .with_filter(EnvFilter::new("svcforge=info"))
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
        .with(json.with_filter(filter(level)))
        .with(traces())
        .try_init();
}
