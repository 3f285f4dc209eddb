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
        change::{ChangeForm, ChangeFormProps, Review, ReviewProps, differences},
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
        version: flash
            .value("version")
            .and_then(|v| v.parse().ok())
            .unwrap_or(of.version),
        fields: of.fields,
        flash,
    };
    draw(move || ChangeForm(props))
}

/// The post: what would differ; confirmed, the change.
pub async fn change(
    Signed(actor): Signed,
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, values) = read(request).await?;
    let of = ops::settings(&state.ops, &actor, id).await?;
    let flash = match look(&of, &values) {
        Ok((full, _)) if values.contains_key("confirm") => {
            let version = values
                .get("version")
                .and_then(|v| v.parse().ok())
                .unwrap_or(0);
            let change = ops::Change {
                parameters: Some(full),
                replace: true,
                ..ops::Change::default()
            };
            match ops::change_instance(&state.ops, &actor, id, version, change).await {
                Ok(_) => return Ok(Redirect::to(&format!("/services/{id}")).into_response()),
                Err(error) => Err(error.into_problem()),
            }
        }
        Ok((_, differing)) if differing.is_empty() => {
            Err(Problem::conflict("Nothing differs from what is set."))
        }
        Ok((_, differences)) => {
            let shown = values
                .iter()
                .filter(|(name, _)| *name == "version" || name.starts_with("p."));
            let props = ReviewProps {
                path: format!("/services/{id}"),
                name: of.name.clone(),
                differences,
                values: shown.map(|(n, v)| (n.clone(), v.clone())).collect(),
            };
            Ok(FormFlash {
                html: Some(draw(move || Review(props))),
                ..FormFlash::default()
            })
        }
        Err(problem) => Err(problem),
    };
    let flash = flash.unwrap_or_else(|problem| {
        let flash = FormFlash {
            values,
            problem: Some(problem),
            ..FormFlash::default()
        };
        let html = drawn(id, of, flash.clone());
        FormFlash {
            html: Some(html),
            ..flash
        }
    });
    let posted = parts.uri.path().to_owned();
    Ok(again(&state, &posted, parts.headers, parts.extensions, flash).await)
}

type Full = serde_json::Map<String, serde_json::Value>;

/// What was typed, whole, and what of it differs from what is set.
fn look(
    of: &Settings,
    values: &Values,
) -> Result<(Full, Vec<svcforge_app::pages::change::Difference>), Problem> {
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
