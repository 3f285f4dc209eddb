//! Every failure is an RFC 9457 problem, panics and unknown routes included.

use crate::error::Error;
use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use std::any::Any;
use svcforge_app::domain::Problem;

/// The answer for a problem.
pub fn response(mut problem: Problem) -> Response {
    problem.request_id = super::request_id::current();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    if let Some(seconds) = problem.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        response(self.into_problem())
    }
}

/// No such path in the API.
pub async fn no_route() -> Response {
    response(Problem::not_found("path"))
}

/// The path exists, but not with this method.
pub async fn no_method() -> Response {
    response(Problem::new(
        405,
        "method-not-allowed",
        "Not with this method",
        "The path exists, but not with this method.",
    ))
}

/// A panic is a bug of ours: logged with its words, answered without.
pub fn on_panic(panic: Box<dyn Any + Send + 'static>) -> Response {
    let words = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    tracing::error!(event = "request.panicked", error = %words);
    response(Problem::internal())
}
