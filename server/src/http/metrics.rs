//! Prometheus on a listener of its own: this process's own numbers, and while it leads its heartbeat and the gauges of its newest tick.

use crate::db;
use crate::telemetry;
use axum::{
    Router,
    response::{IntoResponse, Response},
    routing::get,
};
use metrics_exporter_prometheus::PrometheusBuilder;
use svcforge_app::domain::instance::STATES;

/// `/metrics`.
pub fn router() -> Router {
    // From here on it counts, not from the first time somebody asks.
    telemetry::metrics();
    Router::new().route("/metrics", get(show))
}

async fn show() -> Response {
    let mut text = telemetry::metrics().render();
    text.push_str(&render(
        telemetry::last_tick(),
        telemetry::gauges().as_ref(),
    ));
    ([("content-type", "text/plain; version=0.0.4")], text).into_response()
}

fn render(last_tick: Option<i64>, gauges: Option<&db::gauges::Gauges>) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        if let Some(at) = last_tick {
            metrics::describe_gauge!(
                "svcforge_reconciler_last_tick_timestamp_seconds",
                "When the loop last came round; only the leader has one"
            );
            metrics::gauge!("svcforge_reconciler_last_tick_timestamp_seconds").set(at as f64);
        }
        let Some(gauges) = gauges else { return };
        metrics::describe_gauge!("svcforge_queue_depth", "Waiting tasks, parked ones too");
        metrics::gauge!("svcforge_queue_depth").set(gauges.queue_depth as f64);
        metrics::describe_gauge!("svcforge_instances", "Instances by state");
        for state in STATES {
            let count = gauges.instances.get(state.as_str()).copied().unwrap_or(0);
            metrics::gauge!("svcforge_instances", "state" => state.as_str()).set(count as f64);
        }
    });
    recorder.handle().render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_exported_zero_when_empty() {
        let gauges = db::gauges::Gauges {
            queue_depth: 3,
            instances: [("ready".to_owned(), 2)].into(),
        };
        let text = render(Some(1_764_550_000), Some(&gauges));
        assert!(
            text.contains("svcforge_reconciler_last_tick_timestamp_seconds 1764550000"),
            "{text}"
        );
        assert!(text.contains("svcforge_queue_depth 3"), "{text}");
        assert!(
            text.contains("svcforge_instances{state=\"ready\"} 2"),
            "{text}"
        );
        assert_eq!(render(None, None), "", "a standby exports neither");
        for state in STATES {
            assert!(text.contains(&format!("state=\"{state}\"")), "{text}");
        }
    }
}
