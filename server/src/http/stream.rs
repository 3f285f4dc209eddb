//! `/api/v1/stream`: server-sent events of ids and kinds. What one may not see is not told.

use super::{
    AppState,
    extract::{self, Signed},
    live::Change,
};
use crate::{
    authz::{Action, Actor, Scope, allows},
    db::{self, session::PgSessions},
};
use axum::{
    extract::State,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use http::request::Parts;
use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};
use svcforge_app::domain::TeamId;
use tokio::sync::broadcast::error::RecvError;
use tower_sessions::Session;

/// How long what is known of the listener holds.
const RECHECK: Duration = Duration::from_secs(1);

/// The stream.
#[utoipa::path(get, path = "/stream", tag = "live", responses((status = 200, description = "text/event-stream of `changed` {topic,id} and `reset`")))]
pub async fn stream(
    Signed(actor): Signed,
    State(state): State<AppState>,
    parts: Parts,
) -> Response {
    let headers = parts.headers;
    let session = parts.extensions.get::<Session>().cloned();
    let store = Arc::new(PgSessions::new(state.ops.pool.clone()));
    let last = headers.get("last-event-id").and_then(|v| v.to_str().ok());
    let (missed, mut rx) = state.live.resume(last);
    let (mut actor, mut checked) = (actor, Instant::now());
    let events = async_stream::stream! {
        // Says at once that the stream stands, so that a page can tell "connected" from "connecting".
        yield Ok::<_, Infallible>(Event::default().comment("hello"));
        match missed {
            None => yield Ok(Event::default().event("reset").data("{}")),
            Some(changes) => for change in changes {
                if let Some(event) = event(&state, &actor, &change).await { yield Ok(event); }
            }
        }
        loop {
            let change = tokio::select! {
                () = state.draining.cancelled() => return,
                change = rx.recv() => change,
            };
            // Who was signed out, disabled or removed from a team hears nothing more: asked again before a word is told.
            if checked.elapsed() > RECHECK {
                // A session that was loaded at the start would never notice that it is gone.
                let session = session.as_ref().and_then(|s| s.id()).map(|id| Session::new(Some(id), store.clone(), None));
                match extract::actor(&state.ops.pool, &headers, session).await {
                    Ok(still) => (actor, checked) = (still, Instant::now()),
                    Err(_) => return,
                }
            }
            match change {
                Ok(change) => if let Some(event) = event(&state, &actor, &change).await { yield Ok(event); },
                // Too slow: what was dropped is unknown, so everything is.
                Err(RecvError::Lagged(_)) => yield Ok(Event::default().event("reset").data("{}")),
                Err(RecvError::Closed) => return,
            }
        }
    };
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
        .into_response();
    response
        .headers_mut()
        .insert("x-accel-buffering", http::HeaderValue::from_static("no"));
    response
}

async fn event(state: &AppState, actor: &Actor, change: &Change) -> Option<Event> {
    let id = format!("{}-{}", state.live.boot, change.n);
    if change.topic.is_empty() {
        return Some(Event::default().event("reset").id(id).data("{}"));
    }
    if !visible(state, actor, change).await {
        return None;
    }
    let data = serde_json::json!({"topic": change.topic, "id": change.id}).to_string();
    Some(Event::default().event("changed").id(id).data(data))
}

async fn visible(state: &AppState, actor: &Actor, change: &Change) -> bool {
    if actor.admin {
        return true;
    }
    let Ok(id) = change.id.parse() else {
        return matches!(change.topic.as_str(), "catalog" | "definition");
    };
    let team = match change.topic.as_str() {
        "instance" => db::instance::find_team(&state.ops.pool, id).await,
        "task" => db::task::find_team(&state.ops.pool, id).await,
        "team" => Ok(Some(id)),
        _ => return false,
    };
    matches!(team, Ok(Some(team)) if allows(actor, Action::ViewInstance, Scope::Team(TeamId(team))))
}
