//! `/api/v1`: one family a file; OpenAPI comes from the routes.

mod catalog;
mod definitions;
mod drift;
mod instances;
mod rollouts;
mod tasks;
mod teams;

pub use catalog::catalog_view;
pub use instances::instance_page;
pub use teams::visible_teams;

use super::{AppState, stream};
use axum::{Json, Router, routing::get};
use http::{HeaderMap, HeaderValue, header};
use std::sync::Arc;
use utoipa::{
    Modify, OpenApi,
    openapi::{
        OpenApi as Document,
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

#[derive(OpenApi)]
#[openapi(
    info(title = "svcforge", description = "Self-service platform for running services. Failures are RFC 9457 problems."),
    components(schemas(svcforge_app::domain::Problem)),
    modifiers(&Bearer),
    security(("bearer" = []))
)]
struct Api;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut Document) {
        let components = document.components.get_or_insert_with(Default::default);
        components.add_security_scheme(
            "bearer",
            SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)),
        );
    }
}

/// The API and its description.
pub fn router() -> (Router<AppState>, Document) {
    let (router, paths) = OpenApiRouter::<AppState>::default()
        .routes(routes!(catalog::list))
        .routes(routes!(catalog::show))
        .routes(routes!(instances::list, instances::create))
        .routes(routes!(
            instances::show,
            instances::change,
            instances::delete
        ))
        .routes(routes!(instances::retry))
        .routes(routes!(instances::upgrade))
        .routes(routes!(instances::rollback))
        .routes(routes!(instances::extend))
        .routes(routes!(instances::pause, instances::unpause))
        .routes(routes!(drift::choose))
        .routes(routes!(drift::show))
        .routes(routes!(drift::release))
        .routes(routes!(drift::ignore))
        .routes(routes!(drift::adopt))
        .routes(routes!(definitions::list))
        .routes(routes!(definitions::workflows))
        .routes(routes!(rollouts::list))
        .routes(routes!(rollouts::show))
        .routes(routes!(rollouts::halt))
        .routes(routes!(rollouts::resume))
        .routes(routes!(rollouts::halt_all))
        .routes(routes!(rollouts::resume_all))
        .routes(routes!(rollouts::pause, rollouts::unpause))
        .routes(routes!(instances::connection))
        .routes(routes!(instances::events))
        .routes(routes!(instances::tasks))
        .routes(routes!(tasks::list))
        .routes(routes!(tasks::show))
        .routes(routes!(tasks::log))
        .routes(routes!(tasks::cancel))
        .routes(routes!(tasks::retry))
        .routes(routes!(teams::list, teams::create))
        .routes(routes!(teams::me))
        .routes(routes!(stream::stream))
        .split_for_parts();
    let mut document = Api::openapi();
    let mut prefixed = Document::default();
    prefixed = prefixed.nest("/api/v1", paths);
    document.merge(prefixed);
    (router, document)
}

/// `/openapi.json`.
pub fn openapi(document: Arc<Document>) -> Router<AppState> {
    Router::new().route(
        "/openapi.json",
        get(move |_: super::extract::Signed| async move { Json(document.as_ref().clone()) }),
    )
}

/// How many items a page has: `limit`, within 1 to 200.
fn page_size(limit: Option<u32>) -> i64 {
    i64::from(limit.unwrap_or(50).clamp(1, 200))
}

/// `Link: <…>; rel="next"` (RFC 8288) for the page after.
fn link_next(path: &str, cursor: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(value) = cursor.and_then(|c| {
        HeaderValue::from_str(&format!(
            "<{path}{}cursor={c}>; rel=\"next\"",
            if path.contains('?') { "&" } else { "?" }
        ))
        .ok()
    }) {
        headers.insert(header::LINK, value);
    }
    headers
}
