//! Teams, and who is asking.

use crate::{
    authz::Actor,
    db,
    error::Error,
    http::{
        AppState,
        extract::{Json as Body, Signed},
    },
    ops::{self, CreateTeam},
};
use axum::{Json, extract::State};
use http::StatusCode;
use serde::Serialize;
use svcforge_app::domain::{Me, Team, TeamId};

/// Teams.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct TeamList {
    items: Vec<Team>,
}

/// The teams one may see: one's own, or all for an admin.
///
/// # Errors
/// From Postgres.
pub async fn visible_teams(ops: &ops::Ops, actor: &Actor) -> Result<Vec<Team>, Error> {
    if !actor.admin {
        return Ok(actor.teams.clone());
    }
    let all = db::team::list_all(&ops.pool).await?;
    Ok(all
        .into_iter()
        .map(|t| Team {
            role: actor
                .teams
                .iter()
                .find(|own| own.id == TeamId(t.id))
                .and_then(|own| own.role),
            id: TeamId(t.id),
            slug: t.slug,
            title: t.title,
        })
        .collect())
}

/// Teams.
#[utoipa::path(get, path = "/teams", tag = "teams", responses((status = 200, body = TeamList)))]
pub async fn list(
    Signed(actor): Signed,
    State(state): State<AppState>,
) -> Result<Json<TeamList>, Error> {
    Ok(Json(TeamList {
        items: visible_teams(&state.ops, &actor).await?,
    }))
}

/// Makes a team.
#[utoipa::path(post, path = "/teams", tag = "teams", request_body = CreateTeam, responses((status = 201, body = Team), (status = 403), (status = 409), (status = 422)))]
pub async fn create(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Body(ask): Body<CreateTeam>,
) -> Result<(StatusCode, Json<Team>), Error> {
    Ok((
        StatusCode::CREATED,
        Json(ops::create_team(&state.ops, &actor, ask).await?),
    ))
}

/// Who am I.
#[utoipa::path(get, path = "/me", tag = "teams", responses((status = 200, body = Me)))]
pub async fn me(Signed(actor): Signed) -> Json<Me> {
    Json(Me {
        id: actor.user,
        name: actor.name,
        admin: actor.admin,
        teams: actor.teams,
    })
}
