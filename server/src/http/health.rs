//! `/livez`: the process. `/readyz`: database, migrations, a published catalog, not draining.

use super::{AppState, problem};
use crate::db;
use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use svcforge_app::domain::Problem;

/// Both routes.
pub fn routes() -> Router<AppState> {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
}

async fn ready(State(state): State<AppState>) -> Response {
    match not_ready(&state).await {
        None => "ok\n".into_response(),
        Some(why) => problem::response(Problem::unavailable(why)),
    }
}

async fn not_ready(state: &AppState) -> Option<String> {
    if state.draining.is_cancelled() {
        return Some("svcforge is stopping.".into());
    }
    if let Err(error) = db::check_migrated(&state.ops.pool).await {
        return Some(format!("{error:#}"));
    }
    match db::catalog::is_published(&state.ops.pool).await {
        Ok(true) => None,
        Ok(false) => Some("No catalog has been published yet.".into()),
        Err(_) => Some("The database cannot be reached.".into()),
    }
}
