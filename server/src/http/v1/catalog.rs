//! What may be asked for.

use crate::{
    authz::{Action, Actor, Scope, require},
    db,
    error::Error,
    http::{
        AppState,
        extract::{Path, Signed},
    },
    ops::Ops,
};
use axum::{Json, extract::State};
use svcforge_app::domain::{CatalogEntry, CatalogView, Problem};

/// The catalog as the actor may see it.
///
/// # Errors
/// From Postgres.
pub async fn catalog_view(ops: &Ops, actor: &Actor) -> Result<CatalogView, Error> {
    require(actor, Action::ViewCatalog, Scope::Platform, "catalog")?;
    let items = db::catalog::list_current(&ops.pool)
        .await?
        .iter()
        .map(|r| r.entry.view())
        .collect();
    // What is wrong with an edit is for those who can mend it.
    let fault = if actor.admin {
        db::catalog::fault(&ops.pool).await?
    } else {
        None
    };
    Ok(CatalogView { items, fault })
}

/// The catalog.
#[utoipa::path(get, path = "/catalog", tag = "catalog", responses((status = 200, body = CatalogView)))]
pub async fn list(
    Signed(actor): Signed,
    State(state): State<AppState>,
) -> Result<Json<CatalogView>, Error> {
    Ok(Json(catalog_view(&state.ops, &actor).await?))
}

/// One entry.
#[utoipa::path(get, path = "/catalog/{type}", tag = "catalog", params(("type" = String, Path)), responses((status = 200, body = CatalogEntry), (status = 404)))]
pub async fn show(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(service_type): Path<String>,
) -> Result<Json<CatalogEntry>, Error> {
    require(
        &actor,
        Action::ViewCatalog,
        Scope::Platform,
        "catalog entry",
    )?;
    let found = db::catalog::find_current(&state.ops.pool, &service_type).await?;
    Ok(Json(
        found
            .ok_or_else(|| Problem::not_found("catalog entry"))?
            .entry
            .view(),
    ))
}
