//! A chart folder becomes one archive, the same bytes every time.

use super::Fault;
use flate2::{Compression, write::GzEncoder};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

/// Largest packed chart, bytes.
pub const MAX_CHART: usize = 1 << 20;
/// Most files of a chart.
const MAX_FILES: usize = 1000;
/// Largest chart before packing, bytes.
const MAX_UNPACKED: u64 = 8 << 20;

#[derive(Deserialize)]
struct ChartYaml {
    name: String,
    version: String,
}

/// Packs the chart in `folder`, whose `Chart.yaml` must say `version`.
///
/// # Errors
/// A missing or mismatching `Chart.yaml`, a symbolic link, too many or too large files.
pub fn pack(folder: &Path, version: &str) -> Result<Vec<u8>, Fault> {
    let meta_file = folder.join("Chart.yaml");
    let text = fs::read_to_string(&meta_file)
        .map_err(|e| Fault::file(&meta_file, format!("cannot be read: {e}")))?;
    let meta: ChartYaml =
        serde_saphyr::from_str(&text).map_err(|e| Fault::file(&meta_file, e.to_string()))?;
    if meta.version != version {
        return Err(Fault {
            line: super::fault::line_of(&text, &["version"]),
            detail: format!(
                "says version {}, but the entry says chart_version {version}",
                meta.version
            ),
            file: meta_file,
        });
    }
    if let Err(why) = svcforge_app::domain::name::check_label(&meta.name, 63) {
        return Err(Fault {
            line: super::fault::line_of(&text, &["name"]),
            detail: format!("name {why}"),
            file: meta_file,
        });
    }
    let mut files = BTreeMap::new();
    collect(folder, folder, &mut files, &mut 0)?;
    archive(&meta.name, &files)
        .map_err(|e| Fault::file(folder, format!("cannot be packed: {e}")))
        .and_then(|bytes| match bytes.len() {
            n if n > MAX_CHART => Err(Fault::file(
                folder,
                format!("is {n} bytes packed; at most {MAX_CHART} are allowed"),
            )),
            _ => Ok(bytes),
        })
}

fn collect(
    root: &Path,
    folder: &Path,
    files: &mut BTreeMap<PathBuf, Vec<u8>>,
    total: &mut u64,
) -> Result<(), Fault> {
    let unreadable =
        |path: &Path, e: std::io::Error| Fault::file(path, format!("cannot be read: {e}"));
    for item in fs::read_dir(folder).map_err(|e| unreadable(folder, e))? {
        let path = item.map_err(|e| unreadable(folder, e))?.path();
        let kind = fs::symlink_metadata(&path).map_err(|e| unreadable(&path, e))?;
        if kind.is_symlink() {
            return Err(Fault::file(
                path,
                "is a symbolic link; a chart holds plain files only",
            ));
        }
        if kind.is_dir() {
            collect(root, &path, files, total)?;
            continue;
        }
        *total += kind.len();
        if files.len() >= MAX_FILES || *total > MAX_UNPACKED {
            return Err(Fault::file(
                root,
                format!("has more than {MAX_FILES} files or {MAX_UNPACKED} bytes"),
            ));
        }
        let content = fs::read(&path).map_err(|e| unreadable(&path, e))?;
        let name = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
        files.insert(name, content);
    }
    Ok(())
}

fn archive(chart: &str, files: &BTreeMap<PathBuf, Vec<u8>>) -> std::io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    // Helm wants Chart.yaml to be found early; otherwise by name.
    let meta = Path::new("Chart.yaml");
    let first = files.get_key_value(meta).into_iter();
    for (name, content) in first.chain(files.iter().filter(|(name, _)| name.as_path() != meta)) {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        tar.append_data(&mut header, Path::new(chart).join(name), content.as_slice())?;
    }
    let mut gz = tar.into_inner()?;
    gz.flush()?;
    gz.finish()
}
