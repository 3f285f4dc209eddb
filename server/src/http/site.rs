//! x
use super::AppState;
/// x
pub fn routes(_s: &AppState) -> axum::Router<AppState> { axum::Router::new() }
