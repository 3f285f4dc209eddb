//! An entry, as its author writes it in YAML and as Postgres keeps it.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use svcforge_app::domain::{CatalogEntry, EntryKind, catalog::Ttl};

/// A service that teams may ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its name, a DNS label.
    #[serde(rename = "type")]
    pub service_type: String,
    /// How it is installed.
    pub kind: EntryKind,
    /// For people.
    pub title: String,
    /// One or two sentences.
    pub summary: String,
    /// Name of an icon in `public/icons`.
    #[serde(default = "default_icon")]
    pub icon: String,
    /// Longer text, plain.
    #[serde(default)]
    pub docs: String,
    /// Folder of the chart, beside the entry (kind `helm`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<String>,
    /// Version of the chart, equal to the one in `Chart.yaml`; for a definition, of the entry itself.
    pub chart_version: String,
    /// The spec a `ServiceDefinition` starts from (kind `service_definition`).
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub definition: Map<String, Value>,
    /// Values that the operator owns; no parameter can reach them.
    #[serde(default)]
    pub values: Map<String, Value>,
    /// JSON Schema of the parameters.
    #[serde(default = "no_parameters")]
    pub parameters: Value,
    /// Parameter → path in the values (or in the definition's spec), dots between keys.
    #[serde(default)]
    pub mapping: BTreeMap<String, String>,
    /// Whether this version closes a hole: it excuses from windows.
    #[serde(default)]
    pub security: bool,
    /// Whether an upgrade to this version may break; when not said, a new semver major where data is persistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaking: Option<bool>,
    /// Whether upgrades start by themselves.
    #[serde(default)]
    pub rollout: RolloutMode,
    /// Upgrades at once; the setting's value when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    /// How long an instance may live.
    #[serde(default)]
    pub ttl: TtlRule,
    /// What would be lost with an instance.
    #[serde(default)]
    pub data: Data,
    /// What happens to its volumes.
    #[serde(default)]
    pub on_delete: OnDelete,
    /// How long a removal waits.
    #[serde(default)]
    pub delete_grace: Seconds,
    /// Secrets made once per instance, in the cluster only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<Credential>,
    /// Value path that gets the name of the Secret with the credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<String>,
    /// What to copy, as templates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connection: Vec<Field>,
}

fn default_icon() -> String {
    "box".into()
}

fn no_parameters() -> Value {
    serde_json::json!({"type": "object", "additionalProperties": false, "properties": {}})
}

/// Whether upgrades start by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutMode {
    /// As soon as halts, cap and windows allow.
    #[default]
    Auto,
    /// A new version starts halted.
    Manual,
}

/// What would be lost with an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Data {
    /// Nothing.
    #[default]
    None,
    /// What can be made again.
    Scratch,
    /// What cannot.
    Persistent,
}

/// What happens to volumes when an instance is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDelete {
    /// They go with it.
    #[default]
    Wipe,
    /// They stay that many days.
    KeepDays(u32),
}

impl Serialize for OnDelete {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Wipe => s.serialize_str("wipe"),
            Self::KeepDays(days) => s.serialize_str(&format!("keep {days}d")),
        }
    }
}

impl<'de> Deserialize<'de> for OnDelete {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        if text == "wipe" {
            return Ok(Self::Wipe);
        }
        text.strip_prefix("keep ")
            .and_then(|rest| rest.strip_suffix('d'))
            .and_then(|days| days.parse().ok())
            .map(Self::KeepDays)
            .ok_or_else(|| {
                D::Error::custom(format!(
                    "on_delete is `wipe` or `keep <days>d`, not {text:?}"
                ))
            })
    }
}

/// A span written `90s`, `15m`, `12h` or `30d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub i64);

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{}s", self.0))
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        parse_span(&text).map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "a span is a whole number with s, m, h or d, at most 10 years, not {text:?}"
            ))
        })
    }
}

/// Seconds of a span written `90s`, `15m`, `12h` or `30d`.
pub fn parse_span(text: &str) -> Option<i64> {
    let (unit_at, unit) = text.char_indices().next_back()?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let number: u32 = text[..unit_at].parse().ok()?;
    i64::from(number)
        .checked_mul(factor)
        .filter(|seconds| *seconds <= 10 * 366 * 86_400)
}

/// How long an instance may live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TtlRule {
    /// When the asker says nothing; for ever when none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Seconds>,
    /// The longest that may be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Seconds>,
}

/// One value of the credentials' Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// Key in the Secret.
    pub name: String,
    /// A fixed value, e.g. a user name; random when none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Characters of a random one.
    #[serde(default = "default_length")]
    pub length: usize,
    /// What they are drawn from.
    #[serde(default = "default_alphabet")]
    pub alphabet: String,
}

fn default_length() -> usize {
    32
}

fn default_alphabet() -> String {
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789".into()
}

/// One thing to copy: a template over `name`, `host`, `namespace`, `release`, `parameters` and, if secret, `credentials`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Label.
    pub name: String,
    /// Template.
    pub value: String,
    /// Whether it is shown only on an audited reveal.
    #[serde(default)]
    pub secret: bool,
}

impl Entry {
    /// As API and portal show it.
    pub fn view(&self) -> CatalogEntry {
        CatalogEntry {
            service_type: self.service_type.clone(),
            kind: self.kind,
            title: self.title.clone(),
            summary: self.summary.clone(),
            icon: self.icon.clone(),
            docs: self.docs.clone(),
            chart_version: self.chart_version.clone(),
            security: self.security,
            parameters: self.parameters.clone(),
            ttl: Ttl {
                default_seconds: self.ttl.default.map(|s| s.0),
                max_seconds: self.ttl.max.map(|s| s.0),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_whole_and_bounded() {
        assert_eq!(parse_span("90s"), Some(90));
        assert_eq!(parse_span("30d"), Some(2_592_000));
        for bad in ["", "d", "1", "1.5h", "-1h", "5000d", "1w", "99999999999s"] {
            assert_eq!(parse_span(bad), None, "{bad}");
        }
    }
}
