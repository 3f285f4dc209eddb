//! Instances: ask, look, change, remove.

use super::{link_next, page_size};
use crate::{
    authz::{Action, Actor, Scope, Via, require},
    db,
    error::Error,
    http::{
        AppState,
        extract::{Json as Body, Path, Query, Signed},
    },
    ops::{self, Change, Ops, PauseAsk, Precondition, RequestInstance, RollbackAsk},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use data_encoding::BASE64URL_NOPAD;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use svcforge_app::domain::{
    Connection, DriftVerdict, Event, Instance, InstancePage, Problem, Task, TeamId,
};
use svcforge_app::pages::InstanceQuery;
use uuid::Uuid;

/// Filters of a list.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    team: Option<String>,
    #[serde(rename = "type")]
    #[param(rename = "type")]
    service_type: Option<String>,
    /// One of the states; all but deleted ones when left out.
    state: Option<String>,
    /// `present`, `gone`, `changed`, `unknown` or `none`.
    drift: Option<String>,
    /// Part of a name.
    q: Option<String>,
    /// From `next_cursor`.
    cursor: Option<String>,
    /// 1 to 200.
    limit: Option<u32>,
}

fn cursor_of(instance: &Instance) -> String {
    BASE64URL_NOPAD.encode(format!("{} {}", instance.created_at, instance.id).as_bytes())
}

fn parse_cursor(text: &str) -> Option<(jiff::Timestamp, Uuid)> {
    let plain = String::from_utf8(BASE64URL_NOPAD.decode(text.as_bytes()).ok()?).ok()?;
    let (at, id) = plain.split_once(' ')?;
    Some((at.parse().ok()?, id.parse().ok()?))
}

/// A page of what the actor may see: one query for API and portal.
///
/// # Errors
/// 422 for a state or cursor that is none.
pub async fn instance_page(
    ops: &Ops,
    actor: &Actor,
    query: &InstanceQuery,
    limit: i64,
) -> Result<InstancePage, Error> {
    let in_state = query
        .state
        .as_deref()
        .map(|s| {
            s.parse()
                .map_err(|why| Problem::field("/state", format!("{s:?} {why}")))
        })
        .transpose()?;
    let before = query
        .cursor
        .as_deref()
        .map(|c| {
            parse_cursor(c).ok_or_else(|| Problem::field("/cursor", "is not a cursor of this list"))
        })
        .transpose()?;
    let filter = db::instance::Filter {
        teams: actor.visible_teams(),
        team: query.team.clone(),
        service_type: query.service_type.clone(),
        state: in_state,
        q: query.q.clone(),
        drift: query
            .drift
            .as_deref()
            .map(|d| {
                DriftVerdict::parse(d).ok_or_else(|| {
                    Problem::field(
                        "/drift",
                        format!("{d:?} is none of present, gone, changed, unknown, none"),
                    )
                })
            })
            .transpose()?,
        id: None,
        before,
    };
    let mut items = db::instance::list(&ops.pool, &filter, limit + 1).await?;
    let more = items.len() as i64 > limit;
    items.truncate(limit as usize);
    let next_cursor = items.last().filter(|_| more).map(cursor_of);
    Ok(InstancePage { items, next_cursor })
}

/// Instances, newest first.
#[utoipa::path(get, path = "/instances", tag = "instances", params(ListQuery), responses((status = 200, body = InstancePage)))]
pub async fn list(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Query(query): Query<ListQuery>,
) -> Result<(HeaderMap, Json<InstancePage>), Error> {
    let limit = page_size(query.limit);
    let query = InstanceQuery {
        team: query.team,
        service_type: query.service_type,
        state: query.state,
        drift: query.drift,
        q: query.q,
        cursor: query.cursor,
    };
    let page = instance_page(&state.ops, &actor, &query, limit).await?;
    let mut path = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in [
        ("team", &query.team),
        ("type", &query.service_type),
        ("state", &query.state),
        ("drift", &query.drift),
        ("q", &query.q),
    ] {
        if let Some(value) = value {
            path.append_pair(name, value);
        }
    }
    path.append_pair("limit", &limit.to_string());
    let headers = link_next(
        &format!("/api/v1/instances?{}", path.finish()),
        page.next_cursor.as_deref(),
    );
    Ok((headers, Json(page)))
}

fn etag(version: i64) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{version}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

fn if_match(headers: &HeaderMap) -> Result<Option<i64>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        return Ok(None);
    };
    let version = value
        .to_str()
        .ok()
        .and_then(|v| v.trim().strip_prefix('"')?.strip_suffix('"')?.parse().ok());
    version.map(Some).ok_or_else(|| {
        Problem::bad_request("If-Match must be the ETag of the instance, with its quotes.")
    })
}

fn with_etag(status: StatusCode, instance: &Instance) -> Response {
    (
        status,
        [(header::ETAG, etag(instance.version))],
        Json(instance),
    )
        .into_response()
}

/// Asks for an instance.
#[utoipa::path(post, path = "/instances", tag = "instances", request_body = RequestInstance,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated POST with the same key gets the first one's answer")),
    responses((status = 201, body = Instance), (status = 409), (status = 422)))]
pub async fn create(
    Signed(actor): Signed,
    State(state): State<AppState>,
    headers: HeaderMap,
    Body(ask): Body<RequestInstance>,
) -> Result<Response, Error> {
    let key = idempotency_key(&headers)?;
    let (instance, created) = ops::request_instance(&state.ops, &actor, ask, key).await?;
    let mut response = with_etag(StatusCode::CREATED, &instance);
    if let Ok(location) = format!("/api/v1/instances/{}", instance.id).parse() {
        response.headers_mut().insert(header::LOCATION, location);
    }
    if !created {
        response
            .headers_mut()
            .insert("idempotent-replay", HeaderValue::from_static("true"));
    }
    Ok(response)
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let key = value.to_str().ok().filter(|k| (1..=255).contains(&k.len()));
    key.map(Some).ok_or_else(|| {
        Problem::bad_request("Idempotency-Key must be 1 to 255 visible ASCII characters.")
    })
}

/// One instance.
#[utoipa::path(get, path = "/instances/{id}", tag = "instances", params(("id" = Uuid, Path)), responses((status = 200, body = Instance), (status = 404)))]
pub async fn show(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
) -> Result<Response, Error> {
    may_view(&state, &actor, id).await?;
    Ok(with_etag(
        StatusCode::OK,
        &ops::find_instance(&state.ops.pool, id).await?,
    ))
}

async fn may_view(state: &AppState, actor: &Actor, id: Uuid) -> Result<(), Error> {
    let team = db::instance::find_team(&state.ops.pool, id)
        .await?
        .ok_or_else(|| Problem::not_found("instance"))?;
    Ok(require(
        actor,
        Action::ViewInstance,
        Scope::Team(TeamId(team)),
        "instance",
    )?)
}

/// Changes an instance.
#[utoipa::path(patch, path = "/instances/{id}", tag = "instances", request_body = Change, params(("id" = Uuid, Path), ("If-Match" = String, Header)),
    responses((status = 200, body = Instance), (status = 412), (status = 428), (status = 422)))]
pub async fn change(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    headers: HeaderMap,
    Body(change): Body<Change>,
) -> Result<Response, Error> {
    may_view(&state, &actor, id).await?;
    let version = if_match(&headers)?.ok_or_else(Problem::look_first)?;
    Ok(with_etag(
        StatusCode::OK,
        &ops::change_instance(&state.ops, &actor, id, version, change).await?,
    ))
}

/// The name typed to confirm.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct DeleteQuery {
    /// The instance's name; required from a browser.
    confirm: Option<String>,
}

/// Removes an instance.
#[utoipa::path(delete, path = "/instances/{id}", tag = "instances", params(("id" = Uuid, Path), DeleteQuery, ("If-Match" = Option<String>, Header)),
    responses((status = 202, body = Instance), (status = 404), (status = 412), (status = 428)))]
pub async fn delete(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Query(query): Query<DeleteQuery>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let when = Precondition {
        version: if_match(&headers)?,
        confirm: query.confirm,
        required: actor.via == Via::Session,
    };
    Ok(with_etag(
        StatusCode::ACCEPTED,
        &ops::delete_instance(&state.ops, &actor, id, when).await?,
    ))
}

/// Tries again what failed.
#[utoipa::path(post, path = "/instances/{id}/retry", tag = "instances", params(("id" = Uuid, Path)), responses((status = 202, body = Task), (status = 409)))]
pub async fn retry(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
) -> Result<(StatusCode, Json<Task>), Error> {
    Ok((
        StatusCode::ACCEPTED,
        Json(ops::retry_instance(&state.ops, &actor, id).await?),
    ))
}

/// Moves it to the catalog's version.
#[utoipa::path(post, path = "/instances/{id}/upgrade", tag = "instances", params(("id" = Uuid, Path)), responses((status = 202, body = Task), (status = 409)))]
pub async fn upgrade(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
) -> Result<(StatusCode, Json<Task>), Error> {
    Ok((
        StatusCode::ACCEPTED,
        Json(ops::upgrade_instance(&state.ops, &actor, id).await?),
    ))
}

/// Moves it back to what it ran before; then it is held there.
#[utoipa::path(post, path = "/instances/{id}/rollback", tag = "instances", params(("id" = Uuid, Path)), request_body = RollbackAsk, responses((status = 202, body = Task), (status = 409), (status = 422)))]
pub async fn rollback(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Body(ask): Body<RollbackAsk>,
) -> Result<(StatusCode, Json<Task>), Error> {
    Ok((
        StatusCode::ACCEPTED,
        Json(ops::rollback(&state.ops, &actor, id, ask).await?),
    ))
}

/// Gives it its entry's default time again, from now, or as much as it may have.
#[utoipa::path(post, path = "/instances/{id}/extend", tag = "instances", params(("id" = Uuid, Path)), responses((status = 202, body = Instance), (status = 409)))]
pub async fn extend(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
) -> Result<Response, Error> {
    Ok(with_etag(
        StatusCode::ACCEPTED,
        &ops::extend_instance(&state.ops, &actor, id).await?,
    ))
}

/// Pauses it: svcforge does nothing there by itself.
#[utoipa::path(post, path = "/instances/{id}/pause", tag = "instances", params(("id" = Uuid, Path)), request_body = PauseAsk, responses((status = 200, body = Instance), (status = 422)))]
pub async fn pause(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Body(ask): Body<PauseAsk>,
) -> Result<Response, Error> {
    Ok(with_etag(
        StatusCode::OK,
        &ops::pause_instance(&state.ops, &actor, id, Some(ask)).await?,
    ))
}

/// Ends its pause.
#[utoipa::path(delete, path = "/instances/{id}/pause", tag = "instances", params(("id" = Uuid, Path)), responses((status = 200, body = Instance), (status = 409)))]
pub async fn unpause(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
) -> Result<Response, Error> {
    Ok(with_etag(
        StatusCode::OK,
        &ops::pause_instance(&state.ops, &actor, id, None).await?,
    ))
}

/// Whether to show secrets.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ConnectionQuery {
    /// Shows the secrets; audited.
    #[serde(default)]
    reveal: bool,
}

/// How to reach it.
#[utoipa::path(get, path = "/instances/{id}/connection", tag = "instances", params(("id" = Uuid, Path), ConnectionQuery), responses((status = 200, body = Connection)))]
pub async fn connection(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Query(query): Query<ConnectionQuery>,
) -> Result<Json<Connection>, Error> {
    Ok(Json(
        ops::reveal(&state.ops, &actor, id, query.reveal).await?,
    ))
}

/// A page.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct EventQuery {
    /// From `next_cursor`.
    cursor: Option<i64>,
    /// 1 to 200.
    limit: Option<u32>,
}

/// A page of a timeline.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct EventPage {
    items: Vec<Event>,
    next_cursor: Option<i64>,
}

/// The timeline, newest first.
#[utoipa::path(get, path = "/instances/{id}/events", tag = "instances", params(("id" = Uuid, Path), EventQuery), responses((status = 200, body = EventPage)))]
pub async fn events(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Query(query): Query<EventQuery>,
) -> Result<(HeaderMap, Json<EventPage>), Error> {
    may_view(&state, &actor, id).await?;
    let limit = page_size(query.limit);
    let mut items = db::event::list(&state.ops.pool, id, query.cursor, limit + 1).await?;
    let more = items.len() as i64 > limit;
    items.truncate(limit as usize);
    let next_cursor = items.last().filter(|_| more).map(|e| e.id);
    let headers = link_next(
        &format!("/api/v1/instances/{id}/events?limit={limit}"),
        next_cursor.map(|c| c.to_string()).as_deref(),
    );
    Ok((headers, Json(EventPage { items, next_cursor })))
}

/// Its tasks, newest first.
#[utoipa::path(get, path = "/instances/{id}/tasks", tag = "instances", params(("id" = Uuid, Path), super::tasks::TaskQuery), responses((status = 200, body = super::tasks::TaskPage)))]
pub async fn tasks(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Query(query): Query<super::tasks::TaskQuery>,
) -> Result<(HeaderMap, Json<super::tasks::TaskPage>), Error> {
    may_view(&state, &actor, id).await?;
    super::tasks::page(
        &state,
        db::task::Filter {
            instance: Some(id),
            ..Default::default()
        },
        query,
        &format!("/api/v1/instances/{id}/tasks"),
    )
    .await
}
