//! Rollouts: look, halt, resume; and pauses wider than one instance.

use crate::{
    error::Error,
    http::{
        AppState,
        extract::{Json as Body, Path, Signed},
    },
    ops::{self, WidePause},
};
use axum::{Json, extract::State};
use http::StatusCode;
use serde::Deserialize;
use svcforge_app::domain::{Problem, Rollout, RolloutsView};

/// Why.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// For whoever reads it at night.
    pub reason: String,
}

/// Every rollout.
#[utoipa::path(get, path = "/rollouts", tag = "rollouts", responses((status = 200, body = RolloutsView)))]
pub async fn list(
    Signed(actor): Signed,
    State(state): State<AppState>,
) -> Result<Json<RolloutsView>, Error> {
    Ok(Json(ops::rollouts(&state.ops, &actor, None).await?))
}

async fn one(
    state: &AppState,
    actor: &crate::authz::Actor,
    of: &str,
) -> Result<Json<Rollout>, Error> {
    let found = ops::rollouts(&state.ops, actor, Some(of))
        .await?
        .items
        .pop();
    Ok(Json(found.ok_or_else(|| Problem::not_found("rollout"))?))
}

/// One type's.
#[utoipa::path(get, path = "/rollouts/{type}", tag = "rollouts", params(("type" = String, Path)), responses((status = 200, body = Rollout), (status = 404)))]
pub async fn show(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(of): Path<String>,
) -> Result<Json<Rollout>, Error> {
    one(&state, &actor, &of).await
}

/// Halts a type: nothing that waits starts, what runs ends.
#[utoipa::path(post, path = "/rollouts/{type}/halt", tag = "rollouts", params(("type" = String, Path)), request_body = Reason, responses((status = 200, body = Rollout), (status = 403), (status = 422)))]
pub async fn halt(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(of): Path<String>,
    Body(why): Body<Reason>,
) -> Result<Json<Rollout>, Error> {
    ops::halt(&state.ops, &actor, Some(&of), &why.reason).await?;
    one(&state, &actor, &of).await
}

/// Resumes a type, one slot at a time.
#[utoipa::path(post, path = "/rollouts/{type}/resume", tag = "rollouts", params(("type" = String, Path)), request_body = Reason, responses((status = 200, body = Rollout), (status = 403), (status = 422)))]
pub async fn resume(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(of): Path<String>,
    Body(why): Body<Reason>,
) -> Result<Json<Rollout>, Error> {
    ops::resume(&state.ops, &actor, Some(&of), &why.reason).await?;
    one(&state, &actor, &of).await
}

/// Halts everything.
#[utoipa::path(post, path = "/rollouts/halt", tag = "rollouts", request_body = Reason, responses((status = 200, body = RolloutsView), (status = 403), (status = 422)))]
pub async fn halt_all(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Body(why): Body<Reason>,
) -> Result<Json<RolloutsView>, Error> {
    ops::halt(&state.ops, &actor, None, &why.reason).await?;
    Ok(Json(ops::rollouts(&state.ops, &actor, None).await?))
}

/// Resumes everything that is not halted by itself.
#[utoipa::path(post, path = "/rollouts/resume", tag = "rollouts", request_body = Reason, responses((status = 200, body = RolloutsView), (status = 403), (status = 422)))]
pub async fn resume_all(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Body(why): Body<Reason>,
) -> Result<Json<RolloutsView>, Error> {
    ops::resume(&state.ops, &actor, None, &why.reason).await?;
    Ok(Json(ops::rollouts(&state.ops, &actor, None).await?))
}

/// Pauses a team, a type or everything.
#[utoipa::path(post, path = "/pauses", tag = "rollouts", request_body = WidePause, responses((status = 204), (status = 403), (status = 422)))]
pub async fn pause(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Body(ask): Body<WidePause>,
) -> Result<StatusCode, Error> {
    ops::pause_wide(&state.ops, &actor, ask, false).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends such a pause.
#[utoipa::path(delete, path = "/pauses", tag = "rollouts", request_body = WidePause, responses((status = 204), (status = 403), (status = 409)))]
pub async fn unpause(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Body(ask): Body<WidePause>,
) -> Result<StatusCode, Error> {
    ops::pause_wide(&state.ops, &actor, ask, true).await?;
    Ok(StatusCode::NO_CONTENT)
}
