//! Tasks and what they wrote.

use super::{link_next, page_size};
use crate::{
    authz::{Action, Actor, Scope, require},
    db,
    error::Error,
    http::{
        AppState,
        extract::{Path, Query, Signed},
    },
    ops,
};
use axum::{Json, extract::State};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use svcforge_app::domain::{LogLine, Problem, Task, TeamId};
use uuid::Uuid;

/// A page.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct TaskQuery {
    /// From `next_cursor`.
    cursor: Option<Uuid>,
    /// 1 to 200.
    limit: Option<u32>,
}

/// A page of tasks.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct TaskPage {
    items: Vec<Task>,
    next_cursor: Option<Uuid>,
}

/// One page of what the filter lets through.
pub async fn page(
    state: &AppState,
    filter: db::task::Filter,
    query: TaskQuery,
    path: &str,
) -> Result<(HeaderMap, Json<TaskPage>), Error> {
    let limit = page_size(query.limit);
    let filter = db::task::Filter {
        before: query.cursor,
        ..filter
    };
    let mut items = db::task::list(&state.ops.pool, &filter, limit + 1).await?;
    let more = items.len() as i64 > limit;
    items.truncate(limit as usize);
    let next_cursor = items.last().filter(|_| more).map(|t| t.id.0);
    let headers = link_next(
        &format!("{path}?limit={limit}"),
        next_cursor.map(|c| c.to_string()).as_deref(),
    );
    Ok((headers, Json(TaskPage { items, next_cursor })))
}

/// Tasks of every team one may see, newest first.
#[utoipa::path(get, path = "/tasks", tag = "tasks", params(TaskQuery), responses((status = 200, body = TaskPage)))]
pub async fn list(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Query(query): Query<TaskQuery>,
) -> Result<(HeaderMap, Json<TaskPage>), Error> {
    let filter = db::task::Filter {
        teams: actor.visible_teams(),
        ..Default::default()
    };
    page(&state, filter, query, "/api/v1/tasks").await
}

async fn may_view(state: &AppState, actor: &Actor, id: Uuid) -> Result<(), Error> {
    let team = db::task::find_team(&state.ops.pool, id)
        .await?
        .ok_or_else(|| Problem::not_found("task"))?;
    Ok(require(
        actor,
        Action::ViewInstance,
        Scope::Team(TeamId(team)),
        "task",
    )?)
}

/// One task.
#[utoipa::path(get, path = "/tasks/{id}", tag = "tasks", params(("id" = Uuid, Path)), responses((status = 200, body = Task), (status = 404)))]
pub async fn show(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
) -> Result<Json<Task>, Error> {
    may_view(&state, &actor, id).await?;
    let found = db::task::list(
        &state.ops.pool,
        &db::task::Filter {
            id: Some(id),
            ..Default::default()
        },
        1,
    )
    .await?
    .pop();
    Ok(Json(found.ok_or_else(|| Problem::not_found("task"))?))
}

/// Where to go on.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    /// The last `seq` one has.
    #[serde(default)]
    after: i64,
}

/// Lines of a log.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LogPage {
    items: Vec<LogLine>,
}

/// Up to 1000 lines of its log, oldest first.
#[utoipa::path(get, path = "/tasks/{id}/log", tag = "tasks", params(("id" = Uuid, Path), LogQuery), responses((status = 200, body = LogPage)))]
pub async fn log(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Query(query): Query<LogQuery>,
) -> Result<Json<LogPage>, Error> {
    may_view(&state, &actor, id).await?;
    Ok(Json(LogPage {
        items: db::task::log(&state.ops.pool, id, query.after, 1000).await?,
    }))
}

/// Cancels a task.
#[utoipa::path(post, path = "/tasks/{id}/cancel", tag = "tasks", params(("id" = Uuid, Path)), responses((status = 202, body = Task), (status = 409)))]
pub async fn cancel(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
) -> Result<(StatusCode, Json<Task>), Error> {
    may_view(&state, &actor, id).await?;
    Ok((
        StatusCode::ACCEPTED,
        Json(ops::cancel_task(&state.ops, &actor, id).await?),
    ))
}

/// Tries again what failed: a new task of its kind.
#[utoipa::path(post, path = "/tasks/{id}/retry", tag = "tasks", params(("id" = Uuid, Path)), responses((status = 202, body = Task), (status = 409)))]
pub async fn retry(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
) -> Result<(StatusCode, Json<Task>), Error> {
    may_view(&state, &actor, id).await?;
    Ok((
        StatusCode::ACCEPTED,
        Json(ops::retry_task(&state.ops, &actor, id).await?),
    ))
}
