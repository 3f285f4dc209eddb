//! The folder of one run, with what Helm reads: held by a lock for as long as its process lives.

use crate::provision::Fault;
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::File,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const PREFIX: &str = "svcforge-run-";
/// A folder as young as this may be about to be locked, seconds.
const YOUNG: i64 = 60;

/// A folder of one run: 0700, gone with it.
#[derive(Debug)]
pub struct Workdir {
    path: PathBuf,
    _held: Flock<File>,
}

fn hold(path: &Path) -> Option<Flock<File>> {
    Flock::lock(File::open(path).ok()?, FlockArg::LockExclusiveNonblock).ok()
}

impl Workdir {
    /// Makes one inside a folder.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(inside: &Path) -> Result<Self, Fault> {
        let path = inside.join(format!("{PREFIX}{}", crate::ids::new_secret()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|e| Fault::Failed(format!("cannot make {}: {e}", path.display())))?;
        match hold(&path) {
            Some(held) => Ok(Self { path, _held: held }),
            None => Err(Fault::Failed(format!("cannot lock {}", path.display()))),
        }
    }

    /// Removes what processes left that were killed: credentials of a cluster are in there. Returns how many folders.
    pub fn sweep(inside: &Path) -> usize {
        let Ok(entries) = std::fs::read_dir(inside) else {
            return 0;
        };
        let dead = entries.flatten().filter(|entry| {
            let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
            // Not what a link leads to, and not another user's.
            let Some(meta) = ours.then(|| entry.path().symlink_metadata().ok()).flatten() else {
                return false;
            };
            let old = crate::clock::now().as_second() - meta.mtime() > YOUNG;
            old && meta.is_dir()
                && meta.uid() == nix::unistd::geteuid().as_raw()
                && hold(&entry.path()).is_some()
        });
        dead.filter(|entry| std::fs::remove_dir_all(entry.path()).is_ok())
            .count()
    }

    /// Writes a file of it, 0600.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf, Fault> {
        use std::io::Write;
        let path = self.path.join(name);
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let written = options
            .open(&path)
            .and_then(|mut file| file.write_all(content));
        written.map_err(|e| Fault::Failed(format!("cannot write {}: {e}", path.display())))?;
        Ok(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workdir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn only_old_folders_that_nobody_holds_are_swept() {
        let tmp = tempfile::tempdir().expect("a folder");
        let age = |path: &Path| {
            let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
            File::open(path)
                .and_then(|dir| dir.set_modified(old))
                .expect("aged");
        };
        let held = Workdir::new(tmp.path()).expect("made");
        let dead = tmp.path().join("svcforge-run-dead");
        let other = tmp.path().join("svcforge-test.dead");
        for dir in [&dead, &other] {
            std::fs::create_dir(dir).expect("made");
            std::fs::write(dir.join("kubeconfig.json"), "{}").expect("written");
            age(dir);
        }
        age(held.path());
        std::fs::create_dir(tmp.path().join("svcforge-run-young")).expect("made");
        std::os::unix::fs::symlink(&other, tmp.path().join("svcforge-run-link")).expect("linked");
        assert_eq!(Workdir::sweep(tmp.path()), 1);
        assert!(!dead.exists() && held.path().exists());
        assert!(other.join("kubeconfig.json").exists());
        assert!(tmp.path().join("svcforge-run-young").exists());
    }
}
