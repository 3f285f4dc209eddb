//! HTTP: the router on one page, the layers in one list. Handlers ask [`crate::ops`] and nothing else.

pub(crate) mod change_form;
mod cross_site;
mod extract;
mod forms;
mod health;
mod limits;
pub mod live;
pub mod metrics;
mod problem;
pub mod request_id;
mod serve;
mod signin;
mod site;
mod stream;
pub mod v1;

pub use cross_site::proven_same_origin;
pub use extract::{hash, new_token};
pub use live::Live;
pub use serve::serve;

use crate::{db::session::PgSessions, ops::Ops};
use axum::{
    Router,
    extract::{DefaultBodyLimit, FromRef},
    middleware,
};
use std::sync::Arc;
use tower_http::{catch_panic::CatchPanicLayer, compression::CompressionLayer};
use tower_sessions::{Expiry, SessionManagerLayer, cookie::SameSite};

/// What every handler may ask for.
#[derive(Clone, FromRef)]
pub struct AppState {
    /// Use cases.
    pub ops: Ops,
    /// What changes, as it changes.
    pub live: Live,
    /// What the portal says of this installation.
    pub info: Arc<Info>,
    /// For Leptos.
    pub leptos: leptos::config::LeptosOptions,
    /// Whether it stops.
    pub draining: tokio_util::sync::CancellationToken,
}

/// What the portal says of this installation, and what cross-site checks compare with.
#[derive(Clone, Debug)]
pub struct Info {
    /// The address people use, without a trailing slash.
    pub external_url: String,
    /// What kind of cluster it is, in words, when it is not a real one.
    pub cluster_note: Option<String>,
    /// Folder with the browser bundle and the styles.
    pub site: std::path::PathBuf,
}

/// Largest request body, bytes.
const MAX_BODY: usize = 256 * 1024;

/// Every route, inside every layer.
pub fn router(state: AppState) -> Router {
    // `__Host-` wants Secure and the path `/`; browsers accept Secure on loopback without TLS.
    let sessions = SessionManagerLayer::new(PgSessions::new(state.ops.pool.clone()))
        .with_name("__Host-svcforge")
        .with_secure(true)
        .with_http_only(true)
        .with_same_site(SameSite::Lax)
        .with_path("/")
        .with_always_save(true)
        .with_expiry(Expiry::OnInactivity(time::Duration::hours(8)));
    let (api, openapi) = v1::router();
    let openapi = Arc::new(openapi);
    Router::new()
        .nest(
            "/api/v1",
            api.merge(v1::openapi(openapi.clone()))
                .fallback(problem::no_route)
                .method_not_allowed_fallback(problem::no_method),
        )
        .merge(v1::openapi(openapi))
        .merge(signin::routes())
        .merge(forms::routes())
        .merge(site::routes(&state))
        // From the inside out.
        .layer(middleware::from_fn_with_state(
            state.clone(),
            cross_site::layer,
        ))
        .layer(sessions)
        .merge(health::routes())
        .with_state(state)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(limits::no_nul))
        .layer(middleware::from_fn(limits::deadline))
        .layer(CatchPanicLayer::custom(problem::on_panic))
        .layer(middleware::from_fn(limits::headers))
        .layer(CompressionLayer::new())
        .layer(middleware::from_fn(request_id::layer))
}
