//! The portal: Leptos pages, their server functions, and the files they load.

use super::{AppState, Info, extract};
use crate::portal::Door;
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use http::{HeaderMap, HeaderValue, header};
use leptos::prelude::provide_context;
use leptos_axum::{
    generate_route_list, handle_server_fns_with_context, render_app_async_with_context,
};
use std::sync::Arc;
use svcforge_app::{App, pages::FormFlash, port::PortalContext, shell};
use tower_http::services::{ServeDir, ServeFile};
use tower_sessions::Session;

/// Every path of the portal.
pub fn routes(state: &AppState) -> Router<AppState> {
    let mut pages = Router::new();
    // Posts that come back are wildcards to the pages' router; here each has its own path (`forms.rs`).
    for route in generate_route_list(App)
        .iter()
        .filter(|r| !r.path().contains('*'))
    {
        pages = pages.route(route.path(), get(page));
    }
    for alone in ["/rollouts", "/drift"] {
        pages = pages.route(alone, get(page));
    }
    Router::new()
        .route("/", get(async || Redirect::to("/services")))
        .route("/api/fn/{*name}", post(server_fn))
        .merge(pages)
        .merge(files(&state.info))
        .fallback(page)
}

/// The bundle, styles and icons. Their names do not change with their content, so browsers must ask, which an ETag makes cheap.
fn files(info: &Info) -> Router<AppState> {
    let folder = |name: &str| {
        ServeDir::new(info.site.join(name))
            .precompressed_br()
            .append_index_html_on_directories(false)
    };
    Router::new()
        .nest_service("/pkg", folder("pkg"))
        .nest_service("/style", folder("style"))
        .nest_service("/icons", folder("icons"))
        .route_service("/stream.js", ServeFile::new(info.site.join("stream.js")))
        .route_service("/start.js", ServeFile::new(info.site.join("start.js")))
        .layer(middleware::from_fn(revalidate))
}

async fn revalidate(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Who asks, as the pages' door. A page without one shows the way to sign in.
async fn door(
    state: &AppState,
    headers: &HeaderMap,
    session: Option<Session>,
) -> Option<PortalContext> {
    let actor = extract::actor(&state.ops.pool, headers, session)
        .await
        .ok()?;
    Some(PortalContext(Arc::new(Door {
        actor,
        ops: state.ops.clone(),
        info: state.info.clone(),
    })))
}

/// Renders a page; people without a session are sent to sign in.
pub(super) async fn page(State(state): State<AppState>, request: Request) -> Response {
    render(
        &state,
        request,
        FormFlash {
            key: crate::ids::new_id().to_string(),
            ..FormFlash::default()
        },
    )
    .await
}

/// Renders the page at the request's path, with what a form came back with.
pub async fn render(state: &AppState, request: Request, flash: FormFlash) -> Response {
    let session = request.extensions().get::<Session>().cloned();
    let (parts, body) = request.into_parts();
    let Some(door) = door(state, &parts.headers, session).await else {
        return Redirect::to("/signin").into_response();
    };
    let status = flash.problem.as_ref().map(|p| p.status);
    let context = move || {
        provide_context(door.clone());
        provide_context(flash.clone());
    };
    let mut response =
        render_app_async_with_context(context, shell)(Request::from_parts(parts, body)).await;
    if let Some(status) = status.and_then(|s| http::StatusCode::from_u16(s).ok()) {
        *response.status_mut() = status;
    }
    response
}

async fn server_fn(State(state): State<AppState>, request: Request<Body>) -> Response {
    let session = request.extensions().get::<Session>().cloned();
    let (parts, body) = request.into_parts();
    let door = door(&state, &parts.headers, session).await;
    let request = Request::from_parts(parts, body);
    let context = move || {
        if let Some(door) = &door {
            provide_context(door.clone());
        }
    };
    handle_server_fns_with_context(context, request)
        .await
        .into_response()
}
