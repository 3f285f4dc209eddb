//! What a team may ask for.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How an entry is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A Helm chart.
    Helm,
    /// A `ServiceDefinition` object.
    ServiceDefinition,
}

impl EntryKind {
    /// The word used in SQL and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Helm => "helm",
            Self::ServiceDefinition => "service_definition",
        }
    }
}

/// How long an instance may live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Ttl {
    /// Seconds, when the asker says nothing; for ever when none.
    pub default_seconds: Option<i64>,
    /// The longest that may be asked; no limit when none.
    pub max_seconds: Option<i64>,
}

/// An entry as API and portal show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct CatalogEntry {
    /// Its name.
    #[serde(rename = "type")]
    pub service_type: String,
    /// How it is installed.
    pub kind: EntryKind,
    /// For people.
    pub title: String,
    /// One or two sentences.
    pub summary: String,
    /// Name of an icon in `public/icons`.
    pub icon: String,
    /// Longer text, plain.
    pub docs: String,
    /// The version on offer.
    pub chart_version: String,
    /// Whether this version is a security fix.
    pub security: bool,
    /// JSON Schema (2020-12) of the parameters.
    #[cfg_attr(feature = "ssr", schema(value_type = Object))]
    pub parameters: Value,
    /// How long an instance may live.
    pub ttl: Ttl,
}

/// The catalog, and what is wrong with the newest edit if that was not taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct CatalogView {
    /// By title.
    pub items: Vec<CatalogEntry>,
    /// Why the newest edit is not served, with file and line.
    pub fault: Option<String>,
}

/// What an input looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormWidget {
    /// Free text.
    Text,
    /// A whole number with its bounds.
    Integer {
        /// Smallest.
        min: Option<i64>,
        /// Largest.
        max: Option<i64>,
    },
    /// Yes or no.
    Checkbox,
    /// One of these.
    Select(Vec<String>),
    /// `KEY=value` lines.
    Lines,
}

/// One input of the request form, derived from our schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormField {
    /// Property name.
    pub name: String,
    /// Label.
    pub title: String,
    /// Help under it.
    pub help: String,
    /// What it looks like.
    pub widget: FormWidget,
    /// What it holds at first, as text.
    pub default: String,
    /// Whether it must be given.
    pub required: bool,
    /// Whether it is in the short form.
    pub basic: bool,
}

impl CatalogEntry {
    /// The form of this entry, in the schema's own order where `x-order` says one, else by name.
    pub fn form(&self) -> Vec<FormField> {
        let required: Vec<&str> = self.parameters["required"]
            .as_array()
            .map(|names| names.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let Some(properties) = self.parameters["properties"].as_object() else {
            return vec![];
        };
        let mut fields: Vec<(i64, FormField)> = properties
            .iter()
            .map(|(name, schema)| {
                let field = FormField {
                    name: name.clone(),
                    title: schema["title"].as_str().unwrap_or(name).into(),
                    help: schema["description"].as_str().unwrap_or_default().into(),
                    widget: widget(schema),
                    default: as_text(&schema["default"]),
                    required: required.contains(&name.as_str()),
                    basic: schema["x-basic"] == Value::Bool(true),
                };
                (schema["x-order"].as_i64().unwrap_or(i64::MAX), field)
            })
            .collect();
        fields.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.name.cmp(&b.1.name)));
        fields.into_iter().map(|(_, field)| field).collect()
    }
}

fn widget(schema: &Value) -> FormWidget {
    if let Some(options) = schema["enum"].as_array() {
        return FormWidget::Select(options.iter().map(as_text).collect());
    }
    match schema["type"].as_str() {
        Some("integer") => FormWidget::Integer {
            min: schema["minimum"].as_i64(),
            max: schema["maximum"].as_i64(),
        },
        Some("boolean") => FormWidget::Checkbox,
        Some("object") => FormWidget::Lines,
        _ => FormWidget::Text,
    }
}

/// A value as a form shows it: objects as `KEY=value` lines.
pub fn as_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| format!("{k}={}", as_text(v)))
            .collect::<Vec<_>>()
            .join("\n"),
        other => other.to_string(),
    }
}
