//! Sign-in by one-time link. The link opens a page whose button posts: what mail scanners and previews fetch uses nothing up.

use super::{AppState, extract::hash, problem};
use crate::{db, error::Error};
use askama::Template;
use axum::{
    Router,
    extract::{Path, State},
    response::{Html, IntoResponse, Redirect, Response},
    routing::{get, post},
};
use svcforge_app::domain::Problem;
use tower_sessions::Session;

/// Key of the sign-in time in a session, seconds since the epoch.
pub const SIGNED_IN_AT: &str = "signed_in_at";
/// Longest session, whatever its use.
pub const ABSOLUTE_SECONDS: i64 = 24 * 3600;

/// A page that must work when the portal cannot.
#[derive(Template)]
#[template(path = "signin.html")]
struct SignInPage<'a> {
    token: Option<&'a str>,
    message: &'a str,
}

/// The link's page, its button, and signing out.
pub fn routes() -> Router<AppState> {
    Router::new()
        .route("/signin", get(plain))
        .route("/signin/{token}", get(show).post(sign_in))
        .route("/signout", post(sign_out))
}

/// The page for people without a session.
pub fn page(token: Option<&str>, message: &str) -> Response {
    let html = SignInPage { token, message }
        .render()
        .unwrap_or_else(|_| message.to_owned());
    let mut response = Html(html).into_response();
    let csp = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
    response.headers_mut().insert(
        http::header::CONTENT_SECURITY_POLICY,
        http::HeaderValue::from_static(csp),
    );
    response
}

async fn plain() -> Response {
    page(
        None,
        "Open the sign-in link that `svcforge up` printed. Each link works once; a new `up` prints a new one.",
    )
}

/// Only what a link can be: what is in it becomes part of the form's target.
fn is_secret(token: &str) -> bool {
    token.len() == 43
        && token
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

async fn show(Path(token): Path<String>) -> Response {
    if !is_secret(&token) {
        return plain().await;
    }
    page(Some(&token), "")
}

async fn sign_in(
    State(state): State<AppState>,
    session: Session,
    Path(token): Path<String>,
) -> Response {
    match try_sign_in(&state, &session, &token).await {
        Ok(()) => Redirect::to("/services").into_response(),
        Err(Error::Problem(p)) => {
            let mut response = page(None, &p.detail);
            *response.status_mut() = http::StatusCode::UNAUTHORIZED;
            response
        }
        Err(other) => problem::response(other.into_problem()),
    }
}

async fn try_sign_in(state: &AppState, session: &Session, token: &str) -> Result<(), Error> {
    let user = db::user::use_link(&state.ops.pool, &hash(token))
        .await?
        .ok_or_else(|| {
            Problem::unauthorized(
                "This link has been used or has expired. Run `svcforge up` again for a new one.",
            )
        })?;
    let failed = |e: tower_sessions::session::Error| Error::Internal(e.into());
    // A new id: what was planted in a browser before the sign-in is worth nothing after it.
    session.flush().await.map_err(failed)?;
    session
        .insert(db::session::USER, user)
        .await
        .map_err(failed)?;
    session
        .insert(SIGNED_IN_AT, crate::clock::now().as_second())
        .await
        .map_err(failed)?;
    session.cycle_id().await.map_err(failed)?;
    Ok(())
}

async fn sign_out(session: Session) -> Response {
    match session.flush().await {
        Ok(()) => Redirect::to("/signin").into_response(),
        Err(error) => problem::response(Error::Internal(error.into()).into_problem()),
    }
}
