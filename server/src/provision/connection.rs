//! Connection templates: what people copy. Secret fields are rendered by a worker only.

use crate::{catalog::Entry, db::instance::Work};
use minijinja::{Environment, UndefinedBehavior, context};
use std::collections::BTreeMap;
use svcforge_app::domain::ConnectionField;

fn render(
    template: &str,
    work: &Work,
    credentials: Option<&BTreeMap<String, String>>,
) -> anyhow::Result<String> {
    let mut env = Environment::empty();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_fuel(Some(10_000));
    let host = format!("{}.{}.svc", work.release_name, work.release_namespace);
    Ok(env.render_str(
        template,
        context! {
            name => &work.name, release => &work.release_name, namespace => &work.release_namespace, host => host,
            parameters => minijinja::Value::from(minijinja::value::Serde(&work.parameters)), credentials => minijinja::Value::from(minijinja::value::Serde(credentials)),
        },
    )?)
}

/// The fields as anybody in the team may see them: secrets without their value.
///
/// # Errors
/// When a template fails, which [`check`] excludes at load.
pub fn public(entry: &Entry, work: &Work) -> anyhow::Result<svcforge_app::domain::Connection> {
    let fields = entry.connection.iter().map(|field| {
        let value = if field.secret {
            None
        } else {
            Some(render(&field.value, work, None)?)
        };
        Ok(ConnectionField {
            name: field.name.clone(),
            value,
            secret: field.secret,
        })
    });
    Ok(svcforge_app::domain::Connection {
        fields: fields.collect::<anyhow::Result<_>>()?,
    })
}

/// Every field with its value.
///
/// # Errors
/// When a template fails.
pub fn revealed(
    entry: &Entry,
    work: &Work,
    credentials: &BTreeMap<String, String>,
) -> anyhow::Result<Vec<ConnectionField>> {
    entry
        .connection
        .iter()
        .map(|field| {
            let value = Some(render(&field.value, work, Some(credentials))?);
            Ok(ConnectionField {
                name: field.name.clone(),
                value,
                secret: field.secret,
            })
        })
        .collect()
}

/// Checks the templates of an entry with made-up values: a field that is not secret must not need credentials.
///
/// # Errors
/// Names the field.
pub fn check(entry: &Entry) -> Result<(), String> {
    let parameters = entry.parameters["properties"]
        .as_object()
        .map(|properties| properties.keys().map(|k| (k.clone(), "x".into())).collect())
        .unwrap_or_default();
    let work = Work {
        state: svcforge_app::domain::InstanceState::Ready,
        team: "team".into(),
        name: "name".into(),
        service_type: entry.service_type.clone(),
        release_name: "release".into(),
        release_namespace: "namespace".into(),
        release_revision: None,
        release_token: None,
        entry_revision_id: uuid::Uuid::nil(),
        parameters,
    };
    let credentials = entry
        .credentials
        .iter()
        .map(|c| (c.name.clone(), "x".to_string()))
        .collect();
    for field in &entry.connection {
        let given = field.secret.then_some(&credentials);
        render(&field.value, &work, given).map_err(|e| {
            format!(
                "connection: field {:?} cannot be rendered: {e:#}",
                field.name
            )
        })?;
    }
    Ok(())
}
