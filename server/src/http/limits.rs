//! A deadline on every answer and the headers on every answer.

use super::problem;
use axum::{extract::Request, middleware::Next, response::Response};
use http::{HeaderValue, header};
use std::time::Duration;
use svcforge_app::domain::Problem;

/// Longest time until the head of an answer.
const DEADLINE: Duration = Duration::from_secs(20);

/// Nothing we keep can hold U+0000; Postgres would refuse it with an error of ours.
pub async fn no_nul(request: Request, next: Next) -> Response {
    if request.uri().to_string().contains("%00") {
        return problem::response(Problem::bad_request(
            "The address may not contain the character U+0000.",
        ));
    }
    next.run(request).await
}

/// Answers 503 rather than never (leptos#4578).
pub async fn deadline(request: Request, next: Next) -> Response {
    match tokio::time::timeout(DEADLINE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!(event = "request.deadline");
            problem::response(Problem::unavailable("It took too long. Try again."))
        }
    }
}

/// Headers that every answer has, unless a handler set its own.
pub async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; frame-ancestors 'none'",
        ),
    ] {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    response
}
