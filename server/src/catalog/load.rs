//! Reads a catalog and checks it as a whole. Pure but for reading files.

use super::{
    Entry, Fault,
    fault::line_of,
    pack::pack,
    values::{get_path, overlaps},
};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use svcforge_app::domain::{EntryKind, name, parameters};

/// Largest catalog file, bytes.
const MAX_FILE: u64 = 1 << 20;
/// Most parameters in a form: past that nobody reads it.
const MAX_PARAMETERS: usize = 40;
/// Most parameters in the short form.
const MAX_BASIC: usize = 12;

/// An entry that passed every check, with its chart.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The entry.
    pub entry: Entry,
    /// The packed chart (kind `helm`).
    pub chart: Option<Vec<u8>>,
    /// SHA-256 over both.
    pub digest: Vec<u8>,
}

/// Loads the catalog at `path`: a file with one entry a document, or a folder with such files and `<sub-folder>/entry.yaml`.
///
/// # Errors
/// Every fault found, with file and line.
pub fn load(path: &Path) -> Result<Vec<Packed>, Vec<Fault>> {
    let files = entry_files(path).map_err(|fault| vec![fault])?;
    let (mut packed, mut faults) = (BTreeMap::<String, (Packed, PathBuf)>::new(), vec![]);
    for file in files {
        match read(&file) {
            Err(fault) => faults.push(fault),
            Ok((text, entries)) => {
                for entry in entries {
                    match check(&file, &text, entry) {
                        Err(fault) => faults.push(fault),
                        Ok(one) => {
                            let service_type = one.entry.service_type.clone();
                            if let Some((_, other)) =
                                packed.insert(service_type.clone(), (one, file.clone()))
                            {
                                faults.push(Fault {
                                    line: line_of(&text, &["type"]),
                                    detail: format!(
                                        "type {service_type} is already taken by {}",
                                        other.display()
                                    ),
                                    file: file.clone(),
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    if faults.is_empty() {
        Ok(packed.into_values().map(|(one, _)| one).collect())
    } else {
        Err(faults)
    }
}

fn entry_files(path: &Path) -> Result<Vec<PathBuf>, Fault> {
    let unreadable = |e: std::io::Error| Fault::file(path, format!("cannot be read: {e}"));
    if fs::metadata(path).map_err(unreadable)?.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut files = vec![];
    for item in fs::read_dir(path).map_err(unreadable)? {
        let item = item.map_err(unreadable)?.path();
        // ConfigMap mounts keep their real files under `..data`; their names are links beside it.
        if item
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with('.'))
        {
            continue;
        }
        if item.is_dir() && item.join("entry.yaml").is_file() {
            files.push(item.join("entry.yaml"));
        } else if item.is_file() && item.extension().is_some_and(|e| e == "yaml" || e == "yml") {
            files.push(item);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Fault::file(
            path,
            "holds no catalog: neither *.yaml nor <folder>/entry.yaml",
        ));
    }
    Ok(files)
}

fn read(file: &Path) -> Result<(String, Vec<Entry>), Fault> {
    let size = fs::metadata(file)
        .map_err(|e| Fault::file(file, format!("cannot be read: {e}")))?
        .len();
    if size > MAX_FILE {
        return Err(Fault::file(
            file,
            format!("is {size} bytes; at most {MAX_FILE} are allowed"),
        ));
    }
    let text =
        fs::read_to_string(file).map_err(|e| Fault::file(file, format!("cannot be read: {e}")))?;
    let entries = serde_saphyr::from_multiple::<Entry>(&text).map_err(|e| Fault {
        file: file.into(),
        line: e.location().map_or(0, |l| l.line()),
        detail: first_line(&e.to_string()),
    })?;
    Ok((text, entries))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn check(file: &Path, text: &str, entry: Entry) -> Result<Packed, Fault> {
    let fault = |path: &[&str], detail: String| Fault {
        file: file.into(),
        line: line_of(text, path),
        detail,
    };
    name::check_label(&entry.service_type, 40)
        .map_err(|why| fault(&["type"], format!("type {why}")))?;
    semver::Version::parse(&entry.chart_version).map_err(|e| {
        fault(
            &["chart_version"],
            format!("chart_version is not a semantic version: {e}"),
        )
    })?;
    parameters::check_schema(&entry.parameters).map_err(|f| {
        let keys: Vec<&str> = std::iter::once("parameters")
            .chain(f.pointer.split('/').filter(|k| !k.is_empty()))
            .collect();
        fault(&keys, format!("parameters{}: {}", f.pointer, f.detail))
    })?;
    check_parameters(&entry).map_err(|(path, detail)| {
        fault(&path.iter().map(String::as_str).collect::<Vec<_>>(), detail)
    })?;
    if let (Some(default), Some(max)) = (entry.ttl.default, entry.ttl.max)
        && default > max
    {
        return Err(fault(
            &["ttl", "default"],
            "ttl: default is longer than max".into(),
        ));
    }
    for credential in &entry.credentials {
        if credential.value.is_none()
            && (credential.length < 12 || credential.alphabet.chars().count() < 10)
        {
            return Err(fault(
                &["credentials"],
                format!(
                    "credentials: {} needs length ≥ 12 and an alphabet of ≥ 10",
                    credential.name
                ),
            ));
        }
    }
    crate::provision::connection::check(&entry).map_err(|why| fault(&["connection"], why))?;
    let chart = match (entry.kind, &entry.chart) {
        (EntryKind::Helm, Some(folder)) => Some(pack(
            &beside(file, folder).map_err(|why| fault(&["chart"], why))?,
            &entry.chart_version,
        )?),
        (EntryKind::Helm, None) => {
            return Err(fault(
                &["kind"],
                "kind helm needs chart: the chart's folder".into(),
            ));
        }
        (EntryKind::ServiceDefinition, None) => None,
        (EntryKind::ServiceDefinition, Some(_)) => {
            return Err(fault(
                &["chart"],
                "kind service_definition has no chart; write definition:".into(),
            ));
        }
    };
    if entry.kind == EntryKind::ServiceDefinition {
        check_definition(&entry).map_err(|(path, why)| fault(&path, why))?;
    }
    if let (EntryKind::Helm, Some(folder)) = (entry.kind, &entry.chart) {
        check_paths(
            &entry,
            &beside(file, folder).map_err(|why| fault(&["chart"], why))?,
        )
        .map_err(|(name, detail)| fault(&["mapping", &name], detail))?;
    }
    let mut sha = Sha256::new();
    // The text of an entry may change in ways that change nothing it installs; but what is installed is all in its JSON.
    sha.update(serde_json::to_vec(&entry).map_err(|e| fault(&[], e.to_string()))?);
    sha.update(chart.as_deref().unwrap_or_default());
    Ok(Packed {
        digest: sha.finalize().to_vec(),
        entry,
        chart,
    })
}

/// What an entry may say of a ServiceDefinition's spec; its owner and its template svcforge says itself.
const SPEC: [&str; 5] = ["description", "image", "port", "replicas", "env"];

/// A ServiceDefinition's spec takes nothing but its own fields: what else an entry maps or sets would be dropped without a word.
fn check_definition(entry: &Entry) -> Result<(), (Vec<&str>, String)> {
    let known = |field: &str| SPEC.contains(&field);
    let fields = SPEC.join(", ");
    if let Some(field) = entry.definition.keys().find(|f| !known(f)) {
        let why = format!("a ServiceDefinition has no {field} to set; its fields are {fields}");
        return Err((vec!["definition", field], why));
    }
    for (name, path) in &entry.mapping {
        let (field, within) = path.split_once('.').unwrap_or((path, ""));
        if !known(field) || (field != "env" && !within.is_empty()) || within.contains('.') {
            let why = format!(
                "{path} is no field of a ServiceDefinition; there are {fields}, and env.NAME for one variable"
            );
            return Err((vec!["mapping", name], why));
        }
    }
    if !entry.credentials.is_empty() {
        let why = "a ServiceDefinition takes no Secret: only charts have credentials".to_owned();
        return Err((vec!["credentials"], why));
    }
    let mut spec = entry.definition.clone();
    spec.entry("image").or_insert_with(|| "image".into());
    serde_json::from_value::<crate::cluster::ServiceDefinitionSpec>(spec.into())
        .map(|_| ())
        .map_err(|e| {
            (
                vec!["definition"],
                format!("is no ServiceDefinition's spec: {e}"),
            )
        })
}

/// Parameters reach only mapped paths, and no path that the operator has set.
fn check_parameters(entry: &Entry) -> Result<(), (Vec<String>, String)> {
    let at = |path: &[&str]| path.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let empty = serde_json::Map::new();
    let properties = entry.parameters["properties"].as_object().unwrap_or(&empty);
    if properties.len() > MAX_PARAMETERS {
        return Err((
            at(&["parameters"]),
            format!(
                "has {} parameters; at most {MAX_PARAMETERS} make a usable form",
                properties.len()
            ),
        ));
    }
    if properties.values().filter(|p| p["x-basic"] == true).count() > MAX_BASIC {
        return Err((
            at(&["parameters"]),
            format!("marks more than {MAX_BASIC} parameters x-basic"),
        ));
    }
    for name in properties.keys() {
        if !entry.mapping.contains_key(name) {
            return Err((
                at(&["parameters", "properties", name]),
                format!("parameter {name} has no mapping to a value path"),
            ));
        }
    }
    let base = if entry.kind == EntryKind::Helm {
        &entry.values
    } else {
        &entry.definition
    };
    for (name, path) in &entry.mapping {
        if !properties.contains_key(name) {
            return Err((
                at(&["mapping", name]),
                format!("mapping names {name}, which is not a parameter"),
            ));
        }
        if path.is_empty() || path.split('.').any(str::is_empty) {
            return Err((
                at(&["mapping", name]),
                format!("{path:?} is not a path of keys with dots between"),
            ));
        }
        // A definition starts from defaults; there, mapping is what unlocks one of them.
        if entry.kind == EntryKind::Helm && get_path(base, path).is_some() {
            return Err((
                at(&["mapping", name]),
                format!("{path} is set in values: the operator has locked it"),
            ));
        }
        if let Some((other, _)) = entry
            .mapping
            .iter()
            .find(|(other, p)| *other != name && overlaps(p, path))
        {
            return Err((
                at(&["mapping", name]),
                format!("{name} and {other} map to overlapping paths"),
            ));
        }
    }
    Ok(())
}

/// A parameter that is mapped to a value the chart does not have would be taken and change nothing.
fn check_paths(entry: &Entry, chart: &Path) -> Result<(), (String, String)> {
    let text = fs::read_to_string(chart.join("values.yaml")).unwrap_or_default();
    let values: serde_json::Map<String, serde_json::Value> = match text.trim() {
        "" => serde_json::Map::new(),
        _ => serde_saphyr::from_str(&text).map_err(|e| {
            (
                String::new(),
                format!(
                    "the chart's values.yaml cannot be read: {}",
                    first_line(&e.to_string())
                ),
            )
        })?,
    };
    let secret = entry
        .credentials_secret
        .iter()
        .map(|path| ("credentials_secret", path));
    for (name, path) in entry
        .mapping
        .iter()
        .map(|(n, p)| (n.as_str(), p))
        .chain(secret)
    {
        if get_path(&values, path).is_none() {
            return Err((
                name.to_owned(),
                format!("{name} is mapped to {path}, which the chart's values.yaml does not have"),
            ));
        }
    }
    Ok(())
}

/// A folder beside the entry's file, and nowhere else.
fn beside(file: &Path, folder: &str) -> Result<PathBuf, String> {
    let plain = Path::new(folder)
        .components()
        .all(|c| matches!(c, std::path::Component::Normal(_)));
    if !plain || folder.is_empty() {
        return Err(format!(
            "chart {folder:?} must be a folder beside the entry, without .. or /"
        ));
    }
    Ok(file.parent().unwrap_or(Path::new(".")).join(folder))
}
