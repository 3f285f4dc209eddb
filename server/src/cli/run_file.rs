//! `.svcforge/run.json`: how scripts find a running `up`.

use serde::Serialize;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// What is in it.
#[derive(Debug, Serialize)]
pub struct RunFile {
    pub url: String,
    pub metrics_url: String,
    pub pg_dsn: String,
    pub kubeconfig: Option<PathBuf>,
    pub apps_namespace: String,
    pub api_token: String,
    pub pids: BTreeMap<String, u32>,
}

impl RunFile {
    /// Writes it whole, 0600: a reader sees the old one or the new one.
    pub fn write(&self, dir: &Path) -> anyhow::Result<()> {
        use std::{io::Write, os::unix::fs::OpenOptionsExt};
        let (path, new) = (dir.join("run.json"), dir.join("run.json.new"));
        let _ = std::fs::remove_file(&new);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        Ok(std::fs::rename(new, path)?)
    }

    /// Removes it: nothing runs any more.
    pub fn remove(dir: &Path) {
        let _ = std::fs::remove_file(dir.join("run.json"));
    }
}
