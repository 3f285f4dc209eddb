//! Prometheus on a listener of its own. The gauges are read from Postgres when they are asked for: nothing to keep, nothing to go stale.

use crate::db;
use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use metrics_exporter_prometheus::PrometheusBuilder;
use sqlx::PgPool;
use svcforge_app::domain::instance::STATES;

/// `/metrics`.
pub fn router(pool: PgPool) -> Router {
    Router::new().route("/metrics", get(show)).with_state(pool)
}

async fn show(State(pool): State<PgPool>) -> Response {
    match db::gauges::read(&pool).await {
        Ok(gauges) => (
            [("content-type", "text/plain; version=0.0.4")],
            render(&gauges),
        )
            .into_response(),
        Err(error) => {
            tracing::error!(event = "gauges.failed", %error);
            http::StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}

fn render(gauges: &db::gauges::Gauges) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
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
        let text = render(&gauges);
        assert!(text.contains("svcforge_queue_depth 3"), "{text}");
        assert!(
            text.contains("svcforge_instances{state=\"ready\"} 2"),
            "{text}"
        );
        for state in STATES {
            assert!(text.contains(&format!("state=\"{state}\"")), "{text}");
        }
    }
}
