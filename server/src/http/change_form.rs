//! The form that changes a service's settings: typed by the schema, shown as what would differ, done when that is confirmed.

use super::{
    AppState,
    extract::{Path, Signed},
    forms::{Values, again, read},
};
use crate::{
    error::Error,
    ops::{self, Settings},
};
use axum::{
    extract::{Request, State},
    response::{IntoResponse, Redirect, Response},
};
use std::collections::BTreeMap;
use svcforge_app::{
    domain::{Problem, catalog::as_text, parameters},
    pages::{
        FormFlash,
        change::{ChangeForm, ChangeFormProps, Difference, Review, ReviewProps, differences},
        draw,
    },
};
use uuid::Uuid;

/// The form as a page asks for it: with what is set.
pub fn form(id: Uuid, of: Settings) -> String {
    let set = of
        .parameters
        .iter()
        .map(|(name, value)| (format!("p.{name}"), as_text(value)));
    let values = set.collect();
    drawn(
        id,
        of,
        FormFlash {
            values,
            ..FormFlash::default()
        },
    )
}

fn drawn(id: Uuid, of: Settings, flash: FormFlash) -> String {
    let props = ChangeFormProps {
        path: format!("/services/{id}"),
        name: of.name,
        // As it was when what is typed was begun: the diff tells what has changed since.
        version: flash
            .value("version")
            .and_then(|v| v.parse().ok())
            .unwrap_or(of.version),
        fields: of.fields,
        flash,
    };
    draw(move || ChangeForm(props))
}

/// Somebody else's change shows under "Now" of the same comparison: nothing of it is put back unseen.
const CHANGED: &str = "This service was changed after you opened the form. What follows compares with what is set now.";

/// What would differ from what is set now, and the button that does it.
fn review(
    id: Uuid,
    of: &Settings,
    values: &Values,
    differences: Vec<Difference>,
    changed: bool,
) -> String {
    let shown = values.iter().filter(|(name, _)| name.starts_with("p."));
    let version = ("version".to_owned(), of.version.to_string());
    let props = ReviewProps {
        path: format!("/services/{id}"),
        name: of.name.clone(),
        differences,
        values: shown
            .map(|(n, v)| (n.clone(), v.clone()))
            .chain([version])
            .collect(),
        warning: changed.then_some(CHANGED),
    };
    draw(move || Review(props))
}

/// The post: what would differ; confirmed, the change; or back to the form, with what was typed.
pub async fn change(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let has = |name: &str| values.contains_key(name);
    let service = || Redirect::to(&format!("/services/{id}")).into_response();
    let version = values.get("version").and_then(|v| v.parse().ok());
    let mut of = ops::settings(&state.ops, &actor, id).await?;
    let mut looked = look(&of, &values);
    let mut refused = None;
    if let (Ok((full, differing)), true) = (&looked, has("confirm")) {
        // The second of two clicks.
        if differing.is_empty() {
            return Ok(service());
        }
        let change = ops::Change {
            parameters: Some(full.clone()),
            replace: true,
            ..ops::Change::default()
        };
        let done = ops::change_instance(&state.ops, &actor, id, version.unwrap_or(0), change).await;
        match done.map_err(Error::into_problem) {
            Ok(_) => return Ok(service()),
            Err(problem) if problem.status == 412 => {
                of = ops::settings(&state.ops, &actor, id).await?;
                looked = look(&of, &values);
            }
            Err(problem) => refused = Some(problem),
        }
    }
    let problem = match (refused, looked) {
        (Some(problem), _) | (None, Err(problem)) => Some(problem),
        (None, Ok(_)) if has("edit") => None,
        (None, Ok((_, differing))) if differing.is_empty() => {
            Some(Problem::conflict("Nothing differs from what is set."))
        }
        (None, Ok((_, differing))) => {
            let html = review(id, &of, &values, differing, version != Some(of.version));
            return Ok(shown(&state, parts, html, Values::new(), None).await);
        }
    };
    let flash = FormFlash {
        values: values.clone(),
        problem: problem.clone(),
        ..FormFlash::default()
    };
    let html = drawn(id, of, flash);
    Ok(shown(&state, parts, html, values, problem).await)
}

/// The page with that in it.
async fn shown(
    state: &AppState,
    parts: http::request::Parts,
    html: String,
    values: Values,
    problem: Option<Problem>,
) -> Response {
    let flash = FormFlash {
        values,
        problem,
        html: Some(html),
        ..FormFlash::default()
    };
    again(
        state,
        parts.uri.path(),
        parts.headers,
        parts.extensions,
        flash,
    )
    .await
}

type Full = serde_json::Map<String, serde_json::Value>;

/// What was typed, whole, and what of it differs from what is set.
fn look(of: &Settings, values: &Values) -> Result<(Full, Vec<Difference>), Problem> {
    let posted: BTreeMap<String, String> = values
        .iter()
        .filter_map(|(name, v)| Some((name.strip_prefix("p.")?.to_owned(), v.clone())))
        .collect();
    let mut typed = parameters::from_form(&of.schema, &posted);
    // What was not touched stays as it is, even where a text field could not carry it.
    for (name, old) in &of.parameters {
        let untouched = |text: &String| text.replace("\r\n", "\n") == as_text(old);
        if posted.get(name).is_some_and(untouched) {
            typed.insert(name.clone(), old.clone());
        }
    }
    let full = parameters::check(&of.schema, &typed).map_err(Problem::invalid)?;
    parameters::check_immutable(&of.schema, &of.parameters, &full).map_err(Problem::invalid)?;
    let differing = differences(&of.fields, &of.parameters, &full);
    Ok((full, differing))
}
