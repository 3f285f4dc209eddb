//! Refuses what another site may have sent (attack A3): an unsafe request that rides on a cookie must prove that it comes
//! from our own pages. Requests with a bearer token ride on nothing and are exempt.

use super::{AppState, extract::bearer, problem};
use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderMap, Method, header};
use svcforge_app::domain::Problem;

/// Whether the headers prove that a page of `own` (scheme, host, port) sent it. No headers prove nothing.
pub fn proven_same_origin(headers: &HeaderMap, own: &str) -> bool {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    match text("sec-fetch-site") {
        Some(site) => site == "same-origin",
        // Browsers without Sec-Fetch-Site send Origin with every POST; `null` is nobody's.
        None => {
            text(header::ORIGIN.as_str()).is_some_and(|origin| origin.eq_ignore_ascii_case(own))
        }
    }
}

/// The layer.
pub async fn layer(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let safe = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    let headers = request.headers();
    // An API call without a cookie rides on nothing either; it will be told to sign in. (The portal's own posts stay
    // guarded: signing somebody in from another site is an attack, too.)
    let bare_api =
        request.uri().path().starts_with("/api/v1/") && !headers.contains_key(header::COOKIE);
    if safe
        || bare_api
        || bearer(headers).is_some()
        || proven_same_origin(headers, &state.info.external_url)
    {
        return next.run(request).await;
    }
    problem::response(Problem::new(
        403,
        "cross-site",
        "Not from our own pages",
        "This request changes something and does not prove that it comes from svcforge's own pages. Scripts send Authorization: Bearer.",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_pages_are_proven() {
        let proven = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().expect("header"));
            }
            proven_same_origin(&headers, "http://127.0.0.1:8080")
        };
        assert!(proven(&[("sec-fetch-site", "same-origin")]));
        assert!(proven(&[("origin", "http://127.0.0.1:8080")]));
        for bad in [
            &[][..],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none")],
            &[
                ("sec-fetch-site", "cross-site"),
                ("origin", "http://127.0.0.1:8080"),
            ],
            &[("origin", "null")],
            &[("origin", "http://127.0.0.1:8081")],
            &[("origin", "http://127.0.0.1:8080.evil.example")],
        ] {
            assert!(!proven(bad), "{bad:?}");
        }
    }
}
