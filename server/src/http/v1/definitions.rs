//! ServiceDefinitions and Workflows: look only, they are changed in the cluster.

use crate::{
    error::Error,
    http::{AppState, extract::Signed},
    ops,
};
use axum::{Json, extract::State};
use serde::Serialize;
use svcforge_app::domain::{Definition, WorkflowView};

/// ServiceDefinitions.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Definitions {
    items: Vec<Definition>,
}

/// Workflows.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Workflows {
    items: Vec<WorkflowView>,
}

/// ServiceDefinitions as the controller sees them: those of services one may see, and those that svcforge did not make.
#[utoipa::path(get, path = "/definitions", tag = "definitions", responses((status = 200, body = Definitions)))]
pub async fn list(
    Signed(actor): Signed,
    State(state): State<AppState>,
) -> Result<Json<Definitions>, Error> {
    let items = ops::definitions(&state.ops, &actor).await?;
    Ok(Json(Definitions { items }))
}

/// Workflows with each stage's readiness.
#[utoipa::path(get, path = "/workflows", tag = "definitions", responses((status = 200, body = Workflows)))]
pub async fn workflows(
    Signed(actor): Signed,
    State(state): State<AppState>,
) -> Result<Json<Workflows>, Error> {
    let items = ops::workflows(&state.ops, &actor).await?;
    Ok(Json(Workflows { items }))
}
