//! Parameters: typed and checked by one function for portal, API and command line, so that all say the same words.

use super::problem::FieldError;
use serde_json::{Map, Number, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The largest whole number that JavaScript and Helm carry exactly: 2^53 - 1 … we allow 2^53 itself.
pub const MAX_EXACT: i64 = 1 << 53;

/// Why a schema cannot be served; `pointer` is into the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaFault {
    /// JSON pointer into the schema.
    pub pointer: String,
    /// What is wrong.
    pub detail: String,
}

/// Checks a schema of ours at load: an object of named properties, no references outside, nothing that would lose digits on its way through Helm.
///
/// # Errors
/// The first fault.
pub fn check_schema(schema: &Value) -> Result<(), SchemaFault> {
    let fault = |pointer: &str, detail: String| {
        Err(SchemaFault {
            pointer: pointer.into(),
            detail,
        })
    };
    if schema["type"] != "object" {
        return fault(
            "/type",
            "the parameters' schema must have type: object".into(),
        );
    }
    if schema["additionalProperties"] != Value::Bool(false) {
        return fault(
            "/additionalProperties",
            "must be false: parameters reach only what is mapped".into(),
        );
    }
    walk(schema, "", 0)?;
    if let Err(error) = validator(schema) {
        return fault("", format!("not a valid JSON Schema: {error}"));
    }
    check_defaults(schema)
}

/// A default that its own property refuses would refuse every request that relies on it.
fn check_defaults(schema: &Value) -> Result<(), SchemaFault> {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let Some(default) = property.get("default") else {
            continue;
        };
        let pointer = format!("/properties/{}/default", escape(name));
        let one = validator(property).map_err(|detail| SchemaFault {
            pointer: pointer.clone(),
            detail,
        })?;
        if let Some(error) = one.iter_errors(default).next() {
            return Err(SchemaFault {
                pointer,
                detail: format!("the default is refused by its own property: {error}"),
            });
        }
    }
    Ok(())
}

fn walk(value: &Value, pointer: &str, depth: usize) -> Result<(), SchemaFault> {
    let fault = |detail: String| {
        Err(SchemaFault {
            pointer: pointer.into(),
            detail,
        })
    };
    if depth > 32 {
        return fault("is nested deeper than 32 levels".into());
    }
    match value {
        Value::Object(map) => {
            if map.contains_key("$ref") || map.contains_key("$dynamicRef") {
                return fault("may not use $ref: write the schema out".into());
            }
            if map.get("x-secret") == Some(&Value::Bool(true)) {
                return fault(
                    "x-secret parameters are not supported; let `credentials` make the secret"
                        .into(),
                );
            }
            if map.get("type").is_some_and(Value::is_array) {
                return fault("type must be one word: several would leave open how a form's text is to be typed".into());
            }
            match map.get("type").and_then(Value::as_str) {
                Some("number") => {
                    return fault("type number is refused: Helm would turn it into a float; use a string with a pattern".into());
                }
                Some("integer") => {
                    for bound in ["minimum", "maximum"] {
                        match map.get(bound).and_then(Value::as_i64) {
                            Some(n) if n.unsigned_abs() <= MAX_EXACT.unsigned_abs() => {}
                            _ => {
                                return fault(format!(
                                    "an integer needs a {bound} within ±2^53: larger ones lose digits in Helm; use a string"
                                ));
                            }
                        }
                    }
                }
                _ => {}
            }
            for (key, inner) in map {
                walk(inner, &format!("{pointer}/{}", escape(key)), depth + 1)?;
            }
        }
        Value::Array(items) => {
            for (i, inner) in items.iter().enumerate() {
                walk(inner, &format!("{pointer}/{i}"), depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn validator(schema: &Value) -> Result<jsonschema::Validator, String> {
    jsonschema::options()
        .with_pattern_options(jsonschema::PatternOptions::regex())
        .build(schema)
        .map_err(|e| e.to_string())
}

/// Fills in defaults and checks the parameters. Pointers start with `/parameters`.
///
/// # Errors
/// Every field that is wrong.
pub fn check(
    schema: &Value,
    given: &Map<String, Value>,
) -> Result<Map<String, Value>, Vec<FieldError>> {
    let mut full = given.clone();
    if let Some(properties) = schema["properties"].as_object() {
        for (name, property) in properties {
            if let (None, Some(default)) = (full.get(name), property.get("default")) {
                full.insert(name.clone(), default.clone());
            }
        }
    }
    let mut nul = vec![];
    find_nul(&Value::Object(given.clone()), "/parameters", &mut nul);
    if !nul.is_empty() {
        return Err(nul);
    }
    let validator = validator(schema).map_err(|e| {
        vec![FieldError {
            pointer: "/parameters".into(),
            detail: e,
        }]
    })?;
    let whole = Value::Object(full.clone());
    let mut errors: Vec<FieldError> = validator
        .iter_errors(&whole)
        .flat_map(|e| explain(&e, schema))
        .collect();
    errors.sort_by(|a, b| a.pointer.cmp(&b.pointer));
    errors.dedup();
    if errors.is_empty() {
        Ok(full)
    } else {
        Err(errors)
    }
}

/// Neither Postgres nor Kubernetes can keep U+0000.
fn find_nul(value: &Value, pointer: &str, found: &mut Vec<FieldError>) {
    match value {
        Value::String(text) if text.contains('\0') => {
            found.push(FieldError {
                pointer: pointer.into(),
                detail: "may not contain the character U+0000".into(),
            });
        }
        Value::Array(items) => {
            for (i, inner) in items.iter().enumerate() {
                find_nul(inner, &format!("{pointer}/{i}"), found);
            }
        }
        Value::Object(map) => {
            for (key, inner) in map {
                find_nul(
                    &Value::String(key.clone()),
                    &format!("{pointer}/{}", escape(key)),
                    found,
                );
                find_nul(inner, &format!("{pointer}/{}", escape(key)), found);
            }
        }
        _ => {}
    }
}

fn explain(error: &jsonschema::ValidationError<'_>, schema: &Value) -> Vec<FieldError> {
    use jsonschema::error::ValidationErrorKind as Kind;
    let base = format!("/parameters{}", error.instance_path().as_str());
    match error.kind() {
        Kind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            vec![FieldError {
                pointer: format!("{base}/{}", escape(name)),
                detail: "is required".into(),
            }]
        }
        Kind::AdditionalProperties { unexpected } => {
            let known = schema["properties"]
                .as_object()
                .map(|p| p.keys().cloned().collect::<Vec<_>>().join(", "))
                .unwrap_or_default();
            unexpected
                .iter()
                .map(|name| FieldError {
                    pointer: format!("{base}/{}", escape(name)),
                    detail: format!("is not a parameter of this service; known are {known}"),
                })
                .collect()
        }
        Kind::Pattern { .. } => {
            let name = error.instance_path().as_str().trim_start_matches('/');
            let help = schema["properties"][name]["description"]
                .as_str()
                .unwrap_or("See its pattern.");
            vec![FieldError {
                pointer: base,
                detail: format!("is not of the right form. {help}"),
            }]
        }
        Kind::Type { .. } => {
            // Only where an object is asked for: a form gives that as lines.
            let name = error.instance_path().as_str().trim_start_matches('/');
            let asked = schema["properties"][name]["type"] == "object";
            let text = error.instance().as_str().filter(|_| asked);
            let misread = text.and_then(misread);
            let detail = match misread {
                Some(line) => format!("must be KEY=value, one a line (in JSON an object): {line}"),
                None => error.to_string(),
            };
            vec![FieldError {
                pointer: base,
                detail,
            }]
        }
        _ => vec![FieldError {
            pointer: base,
            detail: error.to_string(),
        }],
    }
}

/// Refuses to change parameters that the schema marks `x-immutable`.
///
/// # Errors
/// Each of them.
pub fn check_immutable(
    schema: &Value,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
) -> Result<(), Vec<FieldError>> {
    let Some(properties) = schema["properties"].as_object() else {
        return Ok(());
    };
    let fixed = properties
        .iter()
        .filter(|(_, p)| p["x-immutable"] == Value::Bool(true));
    let changed: Vec<FieldError> = fixed
        .filter(|(name, _)| old.get(*name) != new.get(*name))
        .map(|(name, _)| FieldError {
            pointer: format!("/parameters/{}", escape(name)),
            detail: format!(
                "cannot be changed once the service is there; it is {}",
                old.get(name).unwrap_or(&Value::Null)
            ),
        })
        .collect();
    if changed.is_empty() {
        Ok(())
    } else {
        Err(changed)
    }
}

/// Gives posted form values the types that the schema names, never the type their text looks like: `"0123"` stays a string
/// where the schema says string. A value that cannot be typed is passed on as text, for [`check`] to name.
pub fn from_form(schema: &Value, posted: &BTreeMap<String, String>) -> Map<String, Value> {
    let mut typed = Map::new();
    for (name, text) in posted {
        let property = &schema["properties"][name];
        let value = match property["type"].as_str() {
            // An empty input is an input that was not filled in.
            Some("integer" | "object") if text.trim().is_empty() => continue,
            Some("string") if text.is_empty() && property.get("default").is_none() => continue,
            Some("integer") => match text.trim().parse::<i64>() {
                Ok(n) => Value::Number(Number::from(n)),
                Err(_) => Value::String(text.clone()),
            },
            Some("boolean") => Value::Bool(text == "true" || text == "on"),
            Some("object") => from_lines(text),
            _ => Value::String(text.clone()),
        };
        typed.insert(name.clone(), value);
    }
    // A browser does not send an unticked box.
    if let Some(properties) = schema["properties"].as_object() {
        for (name, property) in properties {
            if property["type"] == "boolean" && !typed.contains_key(name) {
                typed.insert(name.clone(), Value::Bool(false));
            }
        }
    }
    typed
}

/// `KEY=value`, one a line; a value's own spaces are its own. The lines that say something, numbered from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, Option<(&str, &str)>)> {
    let said = text.lines().enumerate();
    said.filter(|(_, line)| !line.trim().is_empty())
        .map(|(n, line)| {
            let pair = line.split_once('=').map(|(key, value)| (key.trim(), value));
            (n + 1, line, pair)
        })
}

/// The first line that cannot be read, and why.
fn misread(text: &str) -> Option<String> {
    let mut keys = BTreeSet::new();
    lines(text).find_map(|(n, line, pair)| match pair {
        None => Some(format!("line {n}, {:?}, has no =", line.trim())),
        Some(("", _)) => Some(format!(
            "line {n}, {:?}, has nothing before its =",
            line.trim()
        )),
        Some((key, _)) if !keys.insert(key) => Some(format!("line {n} sets {key} again")),
        Some(_) => None,
    })
}

/// An object, where every line can be read; else the text, for [`check`] to name.
fn from_lines(text: &str) -> Value {
    if misread(text).is_some() {
        return Value::String(text.into());
    }
    let pairs = lines(text).filter_map(|(.., pair)| pair);
    Value::Object(
        pairs
            .map(|(key, value)| (key.into(), Value::String(value.into())))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({"type": "object", "additionalProperties": false, "required": ["version"], "properties": {
            "version": {"type": "string", "enum": ["15", "16"]},
            "size": {"type": "integer", "minimum": 1, "maximum": 100, "default": 5},
            "code": {"type": "string", "pattern": "^[0-9a-z]*$"},
            "backup": {"type": "boolean", "default": false},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
        }})
    }

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn defaults_are_filled_and_faults_are_named() {
        let full = check(&schema(), &map(json!({"version": "16"}))).expect("valid");
        assert_eq!(full["size"], 5);
        let errors =
            check(&schema(), &map(json!({"size": "big", "nope": 1}))).expect_err("invalid");
        let pointers: Vec<_> = errors.iter().map(|e| e.pointer.as_str()).collect();
        assert_eq!(
            pointers,
            [
                "/parameters/nope",
                "/parameters/size",
                "/parameters/version"
            ]
        );
        assert_eq!(errors[1].detail, "\"big\" is not of type \"integer\"");
    }

    #[test]
    fn a_form_is_typed_by_the_schema_not_by_its_looks() {
        let posted = [
            ("version", "16"),
            ("size", " 7 "),
            ("code", "1e5"),
            ("env", "A=1\nB=x=y"),
        ]
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .into();
        let typed = from_form(&schema(), &posted);
        assert_eq!(
            Value::Object(typed),
            json!({"version": "16", "size": 7, "code": "1e5", "backup": false, "env": {"A": "1", "B": "x=y"}})
        );
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named_with_the_fix() {
        for (text, why) in [
            ("A=1\r\nB", "line 2, \"B\", has no ="),
            ("A=1\n\n A =2", "line 3 sets A again"),
            ("=1", "line 1, \"=1\", has nothing before its ="),
        ] {
            let posted = [("version", "16"), ("env", text)];
            let posted = posted.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
            let errors = check(&schema(), &from_form(&schema(), &posted)).expect_err(text);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert_eq!(errors[0].pointer, "/parameters/env");
            assert!(errors[0].detail.ends_with(why), "{errors:?}");
            assert!(errors[0].detail.contains("KEY=value"), "{errors:?}");
        }
        let kept = from_lines("A= x \r\n\tB=");
        assert_eq!(kept, json!({"A": " x ", "B": ""}));
        let small = json!({"type": "object", "properties": {"env": {"additionalProperties": {"maxLength": 2}}}});
        let errors = check(&small, &map(json!({"env": {"A": "long"}}))).expect_err("too long");
        let at = crate::domain::Problem::invalid(errors).at("/parameters/env");
        assert!(
            at.is_some_and(|e| e.starts_with("A: ")),
            "its field names it"
        );
    }

    #[test]
    fn what_is_fixed_stays() {
        let schema = json!({"properties": {"size": {"x-immutable": true}, "name": {}}});
        let old = map(json!({"size": 5, "name": "a"}));
        assert_eq!(
            check_immutable(&schema, &old, &map(json!({"size": 5, "name": "b"}))),
            Ok(())
        );
        let errors = check_immutable(&schema, &old, &map(json!({"size": 6, "name": "a"})))
            .expect_err("fixed");
        assert_eq!(
            (errors[0].pointer.as_str(), errors.len()),
            ("/parameters/size", 1)
        );
    }

    #[test]
    fn schemas_that_lose_digits_or_reach_outside_are_refused() {
        let wrap = |p: Value| json!({"type": "object", "additionalProperties": false, "properties": {"x": p}});
        assert_eq!(check_schema(&schema()), Ok(()));
        for bad in [
            json!({"type": "number"}),
            json!({"type": "integer", "minimum": 0}),
            json!({"type": "integer", "minimum": 0, "maximum": MAX_EXACT + 1}),
            json!({"$ref": "https://example.org/x.json"}),
            json!({"type": "string", "x-secret": true}),
            json!({"type": "nonsense"}),
            json!({"type": ["integer", "string"]}),
            json!({"type": "string", "enum": ["a"], "default": "b"}),
        ] {
            assert!(check_schema(&wrap(bad.clone())).is_err(), "{bad}");
        }
        assert!(
            check_schema(&json!({"type": "object", "properties": {}})).is_err(),
            "open object"
        );
    }
}
