//! After `kill -9`: what an earlier `up` in this folder left is found by recorded pid *and* start time, never by name.

use anyhow::Context;
use nix::{
    fcntl::{Flock, FlockArg},
    sys::signal::{self, Signal},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, OpenOptions},
    path::Path,
    time::{Duration, Instant},
};

/// A process, so that its pid cannot be mistaken for a later one's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// What it is.
    pub name: String,
    /// Its pid.
    pub pid: u32,
    /// When it started, clock ticks since boot.
    pub start: u64,
}

impl Recorded {
    /// A running process.
    pub fn of(name: &str, pid: u32) -> Option<Self> {
        Some(Self {
            name: name.into(),
            pid,
            start: start_time(pid)?,
        })
    }

    fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start)
    }
}

/// Field 22 of `/proc/<pid>/stat`; none for a zombie.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name (field 2) may hold spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Keeps the record.
pub fn write(dir: &Path, recorded: &[Recorded]) -> std::io::Result<()> {
    std::fs::write(dir.join("procs.json"), serde_json::to_vec_pretty(recorded)?)
}

/// How long a new run waits for one that has just been told to stop.
const PATIENCE: Duration = Duration::from_secs(2);

/// One `up` a folder: held while it runs, released by the kernel however it ends.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "held, not read")] Flock<File>);

impl Lock {
    /// Takes it.
    ///
    /// # Errors
    /// When another `up` runs in this folder.
    pub fn take(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("lock");
        let until = Instant::now() + PATIENCE;
        loop {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .with_context(|| path.display().to_string())?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Self(lock)),
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
                Err(_) => anyhow::bail!(
                    "another `svcforge up` runs in {}: stop it, or name another folder with --dir",
                    dir.display()
                ),
            }
        }
    }
}

/// Ends what is recorded and still alive. Returns the names.
///
/// # Errors
/// When something does not end within 20 s.
pub fn end_leftovers(dir: &Path) -> anyhow::Result<Vec<String>> {
    let Ok(text) = std::fs::read(dir.join("procs.json")) else {
        return Ok(vec![]);
    };
    let recorded: Vec<Recorded> = serde_json::from_slice(&text).unwrap_or_default();
    let alive: Vec<&Recorded> = recorded.iter().filter(|r| r.is_alive()).collect();
    // A guard ends its child by itself once its stdin has closed, which it has: first only wait.
    wait(&alive, Duration::from_secs(12));
    for left in alive.iter().filter(|r| r.is_alive()) {
        let _ = signal::kill(Pid::from_raw(i32::try_from(left.pid)?), Signal::SIGKILL);
    }
    wait(&alive, Duration::from_secs(8));
    if let Some(stuck) = alive.iter().find(|r| r.is_alive()) {
        anyhow::bail!(
            "{} (pid {}) of an earlier run does not end",
            stuck.name,
            stuck.pid
        );
    }
    Ok(alive.into_iter().map(|r| r.name.clone()).collect())
}

fn wait(processes: &[&Recorded], limit: Duration) {
    let until = Instant::now() + limit;
    while processes.iter().any(|r| r.is_alive()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_with_another_start_time_is_another_process() {
        let me = Recorded::of("me", std::process::id()).expect("this process runs");
        assert!(me.is_alive());
        assert!(
            !Recorded {
                start: me.start + 1,
                ..me
            }
            .is_alive()
        );
        assert_eq!(Recorded::of("nobody", u32::MAX), None);
    }
}
