//! Drift: look, and decide.

use super::rollouts::Reason;
use crate::{
    error::Error,
    http::{
        AppState,
        extract::{Json as Body, Path, Signed},
    },
    ops::{self, AdoptAsk, DriftChoice},
};
use axum::{Json, extract::State};
use http::StatusCode;
use serde::Deserialize;
use svcforge_app::domain::{DriftView, Instance};
use uuid::Uuid;

/// Everything that is not as it should be.
#[utoipa::path(get, path = "/drift", tag = "drift", responses((status = 200, body = DriftView)))]
pub async fn show(
    Signed(actor): Signed,
    State(state): State<AppState>,
) -> Result<Json<DriftView>, Error> {
    Ok(Json(ops::drift_view(&state.ops, &actor).await?))
}

/// Which list may go, and why.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Consent {
    /// `breaker.list` of the answer that was looked at.
    pub list: String,
    /// For whoever reads it at night.
    pub reason: String,
}

/// Lets the list go that the brake on repairs was put on for.
#[utoipa::path(post, path = "/drift/breaker/release", tag = "drift", request_body = Consent, responses((status = 200, body = DriftView), (status = 403), (status = 409)))]
pub async fn release(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Body(why): Body<Consent>,
) -> Result<Json<DriftView>, Error> {
    ops::release_brake(&state.ops, &actor, &why.list, &why.reason).await?;
    Ok(Json(ops::drift_view(&state.ops, &actor).await?))
}

/// Ignores an orphan: it is still there, and logged at info.
#[utoipa::path(post, path = "/drift/orphans/{id}/ignore", tag = "drift", params(("id" = Uuid, Path)), request_body = Reason, responses((status = 200, body = DriftView), (status = 403), (status = 404)))]
pub async fn ignore(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Body(why): Body<Reason>,
) -> Result<Json<DriftView>, Error> {
    ops::ignore_orphan(&state.ops, &actor, id, &why.reason).await?;
    Ok(Json(ops::drift_view(&state.ops, &actor).await?))
}

/// Adopts an orphan: an instance of its own takes the release over and brings it to what the entry says.
#[utoipa::path(post, path = "/drift/orphans/{id}/adopt", tag = "drift", params(("id" = Uuid, Path)), request_body = AdoptAsk, responses((status = 202, body = Instance), (status = 403), (status = 404), (status = 409), (status = 422)))]
pub async fn adopt(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Body(ask): Body<AdoptAsk>,
) -> Result<(StatusCode, Json<Instance>), Error> {
    Ok((
        StatusCode::ACCEPTED,
        Json(ops::adopt_orphan(&state.ops, &actor, id, ask).await?),
    ))
}

/// What to do about a change from outside.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// `keep`, `accept` or `put_back`.
    pub choice: DriftChoice,
}

/// Keeps, accepts or puts back what somebody changed from outside.
#[utoipa::path(post, path = "/instances/{id}/drift", tag = "drift", params(("id" = Uuid, Path)), request_body = Choice, responses((status = 200, body = Instance), (status = 404), (status = 409)))]
pub async fn choose(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Body(ask): Body<Choice>,
) -> Result<Json<Instance>, Error> {
    Ok(Json(
        ops::choose_drift(&state.ops, &actor, id, ask.choice).await?,
    ))
}
