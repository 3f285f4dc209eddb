//! A child under `svcforge guard`: it ends when svcforge ends, however that ends.

use super::leftovers::Recorded;
use anyhow::Context;
use std::{
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

/// Starts children and records them.
#[derive(Debug)]
pub struct Launcher {
    guard: PathBuf,
    dir: PathBuf,
    recorded: Mutex<Vec<Recorded>>,
}

/// How a child is stopped and as whom it runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// SIGINT instead of SIGTERM.
    pub interrupt: bool,
    /// Other user and group.
    pub user: Option<(u32, u32)>,
}

/// A running child.
#[derive(Debug)]
pub struct Guarded {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Launcher {
    /// Children log into and are recorded in `dir`; `guard` is svcforge's own binary.
    pub fn new(guard: &Path, dir: &Path) -> Self {
        Self {
            guard: guard.into(),
            dir: dir.into(),
            recorded: Mutex::default(),
        }
    }

    /// Starts one.
    ///
    /// # Errors
    /// When its log or the guard cannot be opened.
    pub fn start(&self, name: &str, manner: Manner, argv: &[String]) -> anyhow::Result<Guarded> {
        let logs = self.dir.join("log");
        std::fs::create_dir_all(&logs)?;
        let log = logs.join(format!("{name}.log"));
        let out: File = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&log)
            .with_context(|| log.display().to_string())?;
        let mut command = Command::new(&self.guard);
        command.arg("guard").arg("--grace-ms=10000");
        if manner.interrupt {
            command.arg("--interrupt");
        }
        if let Some((uid, gid)) = manner.user {
            command
                .arg(format!("--uid={uid}"))
                .arg(format!("--gid={gid}"));
        }
        command
            .arg("--")
            .args(argv)
            .stdin(Stdio::piped())
            .stdout(out.try_clone()?)
            .stderr(out);
        // Its own group: Ctrl-C in the terminal must reach svcforge alone, which then stops its children in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.guard.display()))?;
        let mut recorded = self
            .recorded
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        recorded.extend(Recorded::of(name, child.id()));
        super::leftovers::write(&self.dir, &recorded)?;
        Ok(Guarded {
            name: name.into(),
            child,
            log,
        })
    }

    /// Pids by name, for `run.json`.
    pub fn pids(&self) -> std::collections::BTreeMap<String, u32> {
        let recorded = self
            .recorded
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        recorded.iter().map(|r| (r.name.clone(), r.pid)).collect()
    }
}

impl Guarded {
    /// Waits until `ready` says so.
    ///
    /// # Errors
    /// When the child ends before, or it takes longer than `limit`: with the end of its log.
    pub async fn until<F: Future<Output = bool>>(
        &mut self,
        limit: Duration,
        ready: impl Fn() -> F,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + limit;
        loop {
            if ready().await {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!(
                    "{} ended at its start ({status}):\n{}",
                    self.name,
                    self.tail()
                );
            }
            anyhow::ensure!(
                Instant::now() < until,
                "{} was not ready after {} s:\n{}",
                self.name,
                limit.as_secs(),
                self.tail()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Stops it and waits until it is gone.
    pub fn stop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.stop();
    }
}
