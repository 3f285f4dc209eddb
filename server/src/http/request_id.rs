//! One id a request: in its answer, its log lines, its events and its audit entries; and the trace it belongs to.

use axum::{extract::Request, middleware::Next, response::Response};
use std::cell::RefCell;
use tracing::Instrument;

#[derive(Clone, Default)]
struct Ids {
    request: String,
    traceparent: Option<String>,
}

tokio::task_local! {
    static IDS: RefCell<Ids>;
}

/// The id of the request this task serves, if it serves one.
pub fn current() -> Option<String> {
    IDS.try_with(|ids| ids.borrow().request.clone()).ok()
}

/// The W3C trace context the request came with, if any.
pub fn traceparent() -> Option<String> {
    IDS.try_with(|ids| ids.borrow().traceparent.clone())
        .ok()
        .flatten()
}

/// Gives every request an id and every answer its header.
pub async fn layer(request: Request, next: Next) -> Response {
    let id = crate::ids::new_id().to_string();
    let traceparent = request
        .headers()
        .get("traceparent")
        .and_then(|v| v.to_str().ok())
        .filter(|v| v.len() == 55 && v.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'))
        .map(str::to_owned);
    let ids = Ids {
        request: id.clone(),
        traceparent,
    };
    let span = tracing::info_span!(
        "request",
        request_id = %id,
        method = %request.method(),
        path = %request.uri().path()
    );
    crate::telemetry::join(&span, ids.traceparent.as_deref());
    let serving = next.run(request).instrument(span);
    let mut response = IDS.scope(RefCell::new(ids), serving).await;
    if let Ok(value) = id.parse() {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}
