//! Traces and numbers. One trace runs from click or tick to Helm through the task row's `traceparent`; it is always there, and
//! exported when the standard variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, …) name a receiver.

use crate::{db::gauges::Gauges, queue::Ending};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use opentelemetry::{
    propagation::{Extractor, Injector, TextMapPropagator},
    trace::TracerProvider as _,
};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider, span_processor_with_async_runtime::BatchSpanProcessor},
};
use std::{
    collections::HashMap,
    sync::{Mutex, OnceLock},
    time::Duration,
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The name traces carry unless `OTEL_SERVICE_NAME` says another.
const SERVICE: &str = "svcforge";

static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();
static METRICS: OnceLock<PrometheusHandle> = OnceLock::new();

/// The tracer for the log's subscriber. Exports when a receiver is named; needs a tokio runtime then.
pub fn tracer() -> SdkTracer {
    let provider = PROVIDER.get_or_init(|| {
        let mut builder = SdkTracerProvider::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            builder = builder.with_resource(Resource::builder().with_service_name(SERVICE).build());
        }
        match exporter() {
            Ok(Some(exporter)) => {
                builder = builder.with_span_processor(
                    BatchSpanProcessor::builder(exporter, opentelemetry_sdk::runtime::Tokio)
                        .build(),
                );
            }
            Ok(None) => {}
            Err(error) => tracing::error!(event = "traces.not_exported", %error),
        }
        builder.build()
    });
    provider.tracer(SERVICE)
}

fn exporter() -> anyhow::Result<Option<opentelemetry_otlp::SpanExporter>> {
    if !crate::config::traces_wanted() {
        return Ok(None);
    }
    Ok(Some(
        opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .build()?,
    ))
}

/// Sends what has not been sent; called before the process ends.
pub async fn flush() {
    let flushed = tokio::task::spawn_blocking(|| {
        if let Some(provider) = PROVIDER.get() {
            let _ = provider.force_flush();
        }
    });
    let _ = tokio::time::timeout(Duration::from_secs(3), flushed).await;
}

struct Headers(HashMap<String, String>);

impl Injector for Headers {
    fn set(&mut self, key: &str, value: String) {
        self.0.insert(key.to_owned(), value);
    }
}

impl Extractor for Headers {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// W3C trace context of where we are: of the current span, else of the request that is served.
pub fn traceparent() -> Option<String> {
    let mut headers = Headers(HashMap::new());
    TraceContextPropagator::new().inject_context(&Span::current().context(), &mut headers);
    headers
        .0
        .remove("traceparent")
        .or_else(crate::http::request_id::traceparent)
}

/// Joins a span to the trace that a task or a request came with.
pub fn join(span: &Span, traceparent: Option<&str>) {
    if let Some(parent) = traceparent {
        let headers = Headers(HashMap::from([(
            "traceparent".to_owned(),
            parent.to_owned(),
        )]));
        let _ = span.set_parent(TraceContextPropagator::new().extract(&headers));
    }
}

/// The process's numbers: installs the recorder at the first call.
pub fn metrics() -> &'static PrometheusHandle {
    METRICS.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let _ = metrics::set_global_recorder(recorder);
        describe();
        handle
    })
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!(
        "svcforge_attempts_total",
        "Attempts by kind and how they ended"
    );
    describe_counter!(
        "svcforge_checks_failed_total",
        "Checks that failed, by check"
    );
    describe_histogram!("svcforge_check_duration_seconds", "How long a check took");
    describe_counter!(
        "svcforge_headless_lanes_total",
        "Lanes that the sweep had to mend; should stay 0"
    );
    describe_gauge!(
        "svcforge_controller_dormant",
        "1 while a controller waits for its namespace, RBAC or CRD"
    );
    describe_gauge!(
        "svcforge_controller_quarantined",
        "Objects that cannot be read and are left alone"
    );
    describe_counter!(
        "svcforge_controller_passes_total",
        "Passes over one object, by how they ended"
    );
    describe_counter!(
        "svcforge_controller_status_writes_total",
        "Statuses written, because something of them differed"
    );
    describe_counter!(
        "svcforge_controller_watch_errors_total",
        "Watches that ended in an error and were begun again, by kind"
    );
}

/// Counts how an attempt ended.
pub fn count_attempt(kind: &str, ending: &Ending) {
    let ended = match ending {
        Ending::Done => "done",
        Ending::Failed(_) => "failed",
        Ending::Hopeless(_) => "hopeless",
        Ending::Waiting { .. } => "waiting",
        Ending::Cancelled(_) => "cancelled",
        Ending::GiveBack => "given_back",
        Ending::NotYet { .. } => "not_yet",
    };
    metrics::counter!("svcforge_attempts_total", "kind" => kind.to_owned(), "ended" => ended)
        .increment(1);
}

/// What the newest tick of this process came to, while it leads.
#[derive(Default)]
struct Tick {
    at: Option<i64>,
    gauges: Option<Gauges>,
}

static TICK: Mutex<Tick> = Mutex::new(Tick {
    at: None,
    gauges: None,
});

fn newest() -> std::sync::MutexGuard<'static, Tick> {
    TICK.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The loop runs.
pub fn beat() {
    newest().at = Some(crate::clock::now().as_second());
}

/// What the tick counted.
pub fn set_gauges(gauges: Gauges) {
    newest().gauges = Some(gauges);
}

/// A standby exports neither.
pub fn stop_beating() {
    *newest() = Tick::default();
}

/// When the loop last came round, while this process leads; seconds since the epoch.
pub fn last_tick() -> Option<i64> {
    newest().at
}

/// What was counted then.
pub fn gauges() -> Option<Gauges> {
    newest().gauges.clone()
}

#[cfg(test)]
mod tests {
    /// Every metric that an alert speaks of is one that is exported under that very name.
    #[test]
    fn alerts_name_metrics_that_exist() {
        let rules = include_str!("../../deploy/alerts/svcforge.yaml");
        let parsed: serde_json::Value = serde_saphyr::from_str(rules).expect("the rules are YAML");
        let sources = [
            include_str!("telemetry.rs"),
            include_str!("http/metrics.rs"),
            include_str!("queue/sweep.rs"),
            include_str!("reconcile/tick.rs"),
        ]
        .join("");
        let mut found = 0;
        for rule in parsed["groups"][0]["rules"].as_array().expect("rules") {
            let expr = rule["expr"].as_str().expect("an expression");
            for name in expr
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .filter(|w| w.starts_with("svcforge_"))
            {
                assert!(sources.contains(&format!("\"{name}\"")), "{name}");
                found += 1;
            }
        }
        assert!(found >= 4);
        assert_eq!(
            parsed["groups"][0]["rules"][0]["alert"],
            "SvcforgeReconcilerStale"
        );
    }
}
