//! Parameters reach the chart's values by mapped paths, and only so.

use super::Entry;
use serde_json::{Map, Value};
use svcforge_app::domain::EntryKind;

/// The value at a path of keys.
pub fn get_path<'a>(map: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut keys = path.split('.');
    let first = map.get(keys.next()?)?;
    keys.try_fold(first, |value, key| value.get(key))
}

fn set_path(map: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            map.insert(path.into(), value);
        }
        Some((key, rest)) => {
            let inner = map.entry(key).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            if let Value::Object(inner) = inner {
                set_path(inner, rest, value);
            }
        }
    }
}

/// Whether one path is the other or lies inside it.
pub fn overlaps(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.split('.'), b.split('.'));
    loop {
        match (a.next(), b.next()) {
            (Some(x), Some(y)) if x == y => {}
            (Some(_), Some(_)) => return false,
            _ => return true,
        }
    }
}

/// The chart's values (or the definition's spec) for checked parameters.
pub fn compose(
    entry: &Entry,
    parameters: &Map<String, Value>,
    credentials_secret: &str,
) -> Map<String, Value> {
    let mut values = match entry.kind {
        EntryKind::Helm => entry.values.clone(),
        EntryKind::ServiceDefinition => entry.definition.clone(),
    };
    for (name, path) in &entry.mapping {
        if let Some(value) = parameters.get(name) {
            set_path(&mut values, path, value.clone());
        }
    }
    if let Some(path) = &entry.credentials_secret {
        set_path(&mut values, path, Value::String(credentials_secret.into()));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_nest_and_overlap() {
        let mut map = Map::new();
        set_path(&mut map, "a.b", json!(1));
        set_path(&mut map, "a.c", json!("x"));
        assert_eq!(Value::Object(map.clone()), json!({"a": {"b": 1, "c": "x"}}));
        assert_eq!(get_path(&map, "a.b"), Some(&json!(1)));
        assert_eq!(get_path(&map, "a.d"), None);
        assert!(overlaps("a.b", "a") && overlaps("a", "a") && !overlaps("a.b", "a.bc"));
    }
}
