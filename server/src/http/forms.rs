//! What people post: plain forms, the same with and without JavaScript. A form that is not taken comes back as its own page
//! with what was typed and what is wrong; one that is leads on by 303.

use super::{
    AppState,
    extract::{Path, Signed},
    site,
};
use crate::{
    clock, db,
    error::Error,
    ops::{self, Precondition, RequestInstance},
};
use axum::{
    Router,
    extract::{Form, Request, State},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use std::collections::BTreeMap;
use svcforge_app::{
    domain::{FieldError, Problem, parameters},
    pages::FormFlash,
};
use uuid::Uuid;

pub(super) type Values = BTreeMap<String, String>;

/// Every form's target. One that comes back is a page at its own path, so that path can also be asked for.
pub fn routes() -> Router<AppState> {
    Router::new()
        .route("/request/{type}", post(request))
        .route("/services/{id}/delete", post(delete))
        .route("/services/{id}/reveal", get(site::page).post(reveal))
        .route("/services/{id}/retry", get(site::page).post(retry))
        .route("/services/{id}/upgrade", get(site::page).post(upgrade))
        .route("/services/{id}/cancel/{task}", get(site::page).post(cancel))
        .route("/services/{id}/drift", get(site::page).post(choose_drift))
        .route("/services/{id}/rollback", get(site::page).post(rollback))
        .route("/services/{id}/pause", get(site::page).post(pause))
        .route("/services/{id}/window", get(site::page).post(window))
        .route("/services/{id}/change", post(super::change_form::change))
        .route("/rollouts/halt", get(site::page).post(halt_all))
        .route("/rollouts/resume", get(site::page).post(resume_all))
        .route("/rollouts/{type}/halt", get(site::page).post(halt))
        .route("/rollouts/{type}/resume", get(site::page).post(resume))
        .route(
            "/drift/breaker/release",
            get(site::page).post(release_brake),
        )
        .route(
            "/drift/orphans/{id}/ignore",
            get(site::page).post(ignore_orphan),
        )
}

/// The page at `path`, drawn again with what came back.
pub(super) async fn again(
    state: &AppState,
    path: &str,
    headers: http::HeaderMap,
    extensions: http::Extensions,
    flash: FormFlash,
) -> Response {
    let mut request = Request::get(path)
        .body(axum::body::Body::empty())
        .unwrap_or_default();
    *request.headers_mut() = headers;
    *request.extensions_mut() = extensions;
    site::render(
        state,
        request,
        FormFlash {
            key: crate::ids::new_id().to_string(),
            ..flash
        },
    )
    .await
}

/// Draws the page at `path` again with the problem; or answers an error of ours.
async fn failed(
    state: &AppState,
    path: &str,
    parts: http::request::Parts,
    values: Values,
    error: Error,
) -> Response {
    let mut problem = error.into_problem();
    // The form asks for days; the rule speaks of seconds.
    for field in problem
        .errors
        .iter_mut()
        .filter(|e| e.pointer == "/ttl_seconds" && e.detail.contains("seconds"))
    {
        field.detail =
            "must be at least 1 day and at most what is said above, or left empty".into();
    }
    again(
        state,
        path,
        parts.headers,
        parts.extensions,
        FormFlash {
            values,
            problem: Some(problem),
            ..FormFlash::default()
        },
    )
    .await
}

pub(super) async fn read(request: Request) -> Result<(http::request::Parts, Values), Error> {
    let (parts, body) = request.into_parts();
    let rebuilt = Request::from_parts(parts.clone(), body);
    let Form(values) = <Form<Values> as axum::extract::FromRequest<()>>::from_request(rebuilt, &())
        .await
        .map_err(|e| Problem::bad_request(format!("The form cannot be read: {}", e.body_text())))?;
    if values
        .iter()
        .any(|(name, value)| name.contains('\0') || value.contains('\0'))
    {
        return Err(Problem::bad_request("The form may not contain the character U+0000.").into());
    }
    Ok((parts, values))
}

async fn request(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(service_type): Path<String>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let path = format!("/request/{service_type}");
    let done = async {
        let entry = db::catalog::find_current(&state.ops.pool, &service_type).await?;
        let entry = entry.ok_or_else(|| Problem::not_found("catalog entry"))?;
        let ask = typed(&service_type, &entry.entry.parameters, &values)?;
        let key = values
            .get("key")
            .map(String::as_str)
            .filter(|k| (1..=255).contains(&k.len()));
        ops::request_instance(&state.ops, &actor, ask, key).await
    };
    match done.await {
        Ok((instance, _)) => {
            Ok(Redirect::to(&format!("/services/{}", instance.id)).into_response())
        }
        Err(error) => Ok(failed(&state, &path, parts, values, error).await),
    }
}

/// The posted text, typed by the schema.
fn typed(
    service_type: &str,
    schema: &serde_json::Value,
    values: &Values,
) -> Result<RequestInstance, Problem> {
    let text = |name: &str| {
        values
            .get(name)
            .map(|v| v.trim().to_owned())
            .unwrap_or_default()
    };
    let posted = values
        .iter()
        .filter_map(|(name, v)| Some((name.strip_prefix("p.")?.to_owned(), v.clone())))
        .collect();
    let days = text("ttl_days");
    let ttl_seconds = match days.as_str() {
        "" => None,
        days => Some(
            days.parse::<i64>()
                .ok()
                .and_then(|d| d.checked_mul(86_400))
                .ok_or_else(|| {
                    Problem::invalid(vec![FieldError {
                        pointer: "/ttl_seconds".into(),
                        detail: "must be a whole number of days".into(),
                    }])
                })?,
        ),
    };
    Ok(RequestInstance {
        team: text("team"),
        service_type: service_type.to_owned(),
        name: text("name"),
        parameters: parameters::from_form(schema, &posted),
        ttl_seconds,
        maintenance_window: Some(text("maintenance_window")).filter(|w| !w.is_empty()),
    })
}

async fn delete(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let when = Precondition {
        version: values.get("version").and_then(|v| v.parse().ok()),
        confirm: Some(
            values
                .get("confirm")
                .map(|v| v.trim().to_owned())
                .unwrap_or_default(),
        ),
        required: true,
    };
    match ops::delete_instance(&state.ops, &actor, id, when).await {
        Ok(_) => Ok(Redirect::to(&format!("/services/{id}")).into_response()),
        Err(error) => Ok(failed(
            &state,
            &format!("/services/{id}/delete"),
            parts,
            values,
            error,
        )
        .await),
    }
}

async fn reveal(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, _) = read(request).await?;
    let path = format!("/services/{id}/reveal");
    match ops::reveal(&state.ops, &actor, id, true).await {
        Ok(connection) => {
            let flash = FormFlash {
                revealed: Some(connection),
                ..FormFlash::default()
            };
            Ok(again(&state, &path, parts.headers, parts.extensions, flash).await)
        }
        Err(error) => Ok(failed(&state, &path, parts, Values::new(), error).await),
    }
}

async fn retry(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    request: Request,
) -> Result<Response, Error> {
    let done = ops::retry_instance(&state.ops, &actor, id).await;
    after(&state, id, request, done).await
}

async fn upgrade(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    request: Request,
) -> Result<Response, Error> {
    let done = ops::upgrade_instance(&state.ops, &actor, id).await;
    after(&state, id, request, done).await
}

async fn cancel(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path((id, task)): Path<(Uuid, Uuid)>,
    request: Request,
) -> Result<Response, Error> {
    let done = ops::cancel_task(&state.ops, &actor, task).await;
    after(&state, id, request, done).await
}

/// A form of a page that is no service's: leads back to the page, or draws it again with what is wrong.
async fn back<T>(
    state: &AppState,
    page: &str,
    parts: http::request::Parts,
    values: Values,
    done: Result<T, Error>,
) -> Result<Response, Error> {
    match done {
        Ok(_) => Ok(Redirect::to(page).into_response()),
        // Under the path that was posted to: the browser's router must find the same page there.
        Err(error) => {
            let posted = parts.uri.path().to_owned();
            Ok(failed(state, &posted, parts, values, error).await)
        }
    }
}

fn reason(values: &Values) -> String {
    values.get("reason").cloned().unwrap_or_default()
}

async fn choose_drift(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let choice = match values.get("choice").map(String::as_str) {
        Some("accept") => ops::DriftChoice::Accept,
        Some("put_back") => ops::DriftChoice::PutBack,
        _ => ops::DriftChoice::Keep,
    };
    let done = ops::choose_drift(&state.ops, &actor, id, choice).await;
    back(&state, &format!("/services/{id}"), parts, values, done).await
}

async fn rollback(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let ask = ops::RollbackAsk {
        to_version: None,
        reason: reason(&values),
    };
    let done = ops::rollback(&state.ops, &actor, id, ask).await;
    back(&state, &format!("/services/{id}"), parts, values, done).await
}

async fn pause(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let ask = match values.contains_key("end") {
        true => Ok(None),
        false => pause_ask(&values).map(Some),
    };
    let done = match ask {
        Ok(ask) => ops::pause_instance(&state.ops, &actor, id, ask).await,
        Err(error) => Err(error),
    };
    back(&state, &format!("/services/{id}"), parts, values, done).await
}

fn pause_ask(values: &Values) -> Result<ops::PauseAsk, Error> {
    let wrong = || Problem::field("/for", "a span such as `8h`, or nothing");
    let until = match values.get("for").map(|f| f.trim()) {
        None | Some("") => None,
        Some(text) => {
            let span: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
            Some(clock::now().checked_add(span).map_err(|_| wrong())?)
        }
    };
    Ok(ops::PauseAsk {
        reason: reason(values),
        until,
    })
}

async fn window(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let text = values
        .get("maintenance_window")
        .map(|w| w.trim().to_owned());
    let change = ops::Change {
        maintenance_window: Some(text.filter(|w| !w.is_empty())),
        ..ops::Change::default()
    };
    let version = values
        .get("version")
        .and_then(|v| v.parse().ok())
        .unwrap_or(0);
    let done = ops::change_instance(&state.ops, &actor, id, version, change).await;
    back(&state, &format!("/services/{id}"), parts, values, done).await
}

async fn halt(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(of): Path<String>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let done = ops::halt(&state.ops, &actor, Some(&of), &reason(&values)).await;
    back(&state, "/rollouts", parts, values, done).await
}

async fn resume(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(of): Path<String>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let done = ops::resume(&state.ops, &actor, Some(&of), &reason(&values)).await;
    back(&state, "/rollouts", parts, values, done).await
}

async fn halt_all(
    Signed(actor): Signed,
    State(state): State<AppState>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let done = ops::halt(&state.ops, &actor, None, &reason(&values)).await;
    back(&state, "/rollouts", parts, values, done).await
}

async fn resume_all(
    Signed(actor): Signed,
    State(state): State<AppState>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let done = ops::resume(&state.ops, &actor, None, &reason(&values)).await;
    back(&state, "/rollouts", parts, values, done).await
}

/// The list that the form was shown beside.
fn shown(parts: &http::request::Parts) -> String {
    let query = parts.uri.query().unwrap_or_default();
    let mut pairs = url::form_urlencoded::parse(query.as_bytes());
    let list = pairs.find(|(name, _)| name == "list");
    list.map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

async fn release_brake(
    Signed(actor): Signed,
    State(state): State<AppState>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let list = shown(&parts);
    let done = ops::release_brake(&state.ops, &actor, &list, &reason(&values)).await;
    back(&state, "/drift", parts, values, done).await
}

async fn ignore_orphan(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let done = ops::ignore_orphan(&state.ops, &actor, id, &reason(&values)).await;
    back(&state, "/drift", parts, values, done).await
}

async fn after<T>(
    state: &AppState,
    id: Uuid,
    request: Request,
    done: Result<T, Error>,
) -> Result<Response, Error> {
    let posted = request.uri().path().to_owned();
    let path = format!("/services/{id}");
    match done {
        Ok(_) => Ok(Redirect::to(&path).into_response()),
        Err(error) => {
            Ok(failed(state, &posted, request.into_parts().0, Values::new(), error).await)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_lasts_as_long_as_the_form_says() {
        let ask = |span: &str| pause_ask(&[("for".to_owned(), span.to_owned())].into());
        assert!(ask("").is_ok_and(|a| a.until.is_none()));
        let until = ask("8h").ok().and_then(|a| a.until).expect("an end");
        let left = until.duration_since(clock::now()).as_secs();
        assert!((8 * 3600 - 5..=8 * 3600).contains(&left), "{left}");
        for wrong in ["soon", "8", "999999999999h"] {
            assert!(ask(wrong).is_err(), "{wrong}");
        }
    }
}
