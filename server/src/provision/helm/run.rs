//! One run of Helm beside one attempt: guarded, its output streamed to the task's log and capped, its environment rebuilt.

use super::{
    Workdir,
    argv::judge,
    guard::{BEAT, STOP},
};
use crate::{
    provision::Fault,
    queue::{Attempt, Stop, Timing, inert},
};
use std::{path::PathBuf, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader},
    process::{ChildStdin, Command},
};

/// Most output that is kept of one run, bytes.
const MAX_OUTPUT: usize = 1 << 20;

/// Helm and how it is run.
#[derive(Clone, Debug)]
pub struct Helm {
    /// Helm's binary.
    pub bin: PathBuf,
    /// svcforge's own binary, for the guard.
    pub guard: PathBuf,
    /// A kubeconfig with nothing but the one cluster.
    pub kubeconfig: PathBuf,
    /// That cluster's API, as the kubeconfig names it.
    pub server: String,
    /// The folder it is in, gone with the last user.
    pub home: std::sync::Arc<Workdir>,
    /// Where folders of runs are made.
    pub tmp: PathBuf,
    /// What Helm is given as `--timeout`.
    pub timeout: Duration,
    /// Heartbeats and stop.
    pub timing: Timing,
    /// Environment that Helm may see: proxy, CA.
    pub environment: Vec<(String, String)>,
}

impl Helm {
    /// Runs Helm to its end.
    ///
    /// # Errors
    /// [`Fault::Stopped`] when the attempt was told to stop; else what Helm's words mean.
    #[tracing::instrument(name = "helm.run", skip_all, fields(verb = argv.first().map(String::as_str)))]
    pub async fn run(
        &self,
        argv: &[String],
        dir: &Workdir,
        attempt: &Attempt,
    ) -> Result<(), Fault> {
        // Frozen for longer than that, this attempt may not be the task's any more: the next heartbeat tells.
        let silent = attempt.heartbeats().borrow().elapsed();
        if silent > self.timing.term_after {
            return Err(Fault::Stopped(Stop::LeaseLost));
        }
        let mut child = self
            .command(argv, dir, silent)
            .spawn()
            .map_err(|e| Fault::Failed(format!("cannot start Helm's guard: {e}")))?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(Fault::Failed("Helm's guard has no pipes".into()));
        };
        attempt.log("svcforge", &format!("helm {}", argv.join(" ")));
        let ended = async {
            let ((), words, status) = tokio::join!(
                stream(stdout, "stdout", attempt),
                capture(stderr, attempt),
                child.wait()
            );
            (words, status)
        };
        let (stop, (words, status)) = supervise(&mut stdin, attempt, ended).await;
        if let Some(stop) = stop {
            return Err(Fault::Stopped(stop));
        }
        match status {
            Ok(status) if status.success() => Ok(()),
            // Without heartbeats the guard ends Helm: what it said then speaks of that.
            Ok(_) if self.silent(attempt) => Err(Fault::Outage {
                what: "Postgres".into(),
                error: "no heartbeat was acknowledged, so Helm was stopped".into(),
            }),
            Ok(_) => Err(judge(&words, &self.server)),
            Err(error) => Err(Fault::Failed(format!("Helm's end was not seen: {error}"))),
        }
    }

    /// Whether no heartbeat has been acknowledged for so long that Helm may not run.
    fn silent(&self, attempt: &Attempt) -> bool {
        attempt.heartbeats().borrow().elapsed() > self.timing.term_after
    }

    fn command(&self, argv: &[String], dir: &Workdir, silent: Duration) -> Command {
        let timing = &self.timing;
        let mut command = Command::new(&self.guard);
        command
            .arg("guard")
            .arg(format!("--term-after-ms={}", timing.term_after.as_millis()))
            .arg(format!("--kill-after-ms={}", timing.kill_after.as_millis()))
            .arg(format!("--silent-ms={}", silent.as_millis()))
            .arg(format!("--grace-ms={}", timing.stop_grace.as_millis()))
            .arg("--")
            .arg(&self.bin)
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()));
        command
            .args(argv)
            .env_clear()
            .envs(self.environment.iter().cloned());
        for (name, folder) in [
            ("HOME", "home"),
            ("HELM_CACHE_HOME", "cache"),
            ("HELM_CONFIG_HOME", "config"),
            ("HELM_DATA_HOME", "data"),
            ("TMPDIR", ""),
        ] {
            command.env(name, dir.path().join(folder));
        }
        command
            .current_dir(dir.path())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// Passes heartbeats on and asks the guard to end Helm when the attempt must stop; comes back when Helm has ended.
async fn supervise<T>(
    stdin: &mut ChildStdin,
    attempt: &Attempt,
    ended: impl Future<Output = T>,
) -> (Option<Stop>, T) {
    let mut ended = std::pin::pin!(ended);
    let mut beats = attempt.heartbeats();
    let mut stopped = None;
    loop {
        tokio::select! {
            result = &mut ended => return (stopped, result),
            beat = beats.changed() => {
                if beat.is_err() {
                    // Nobody beats any more; the guard's own clock decides.
                    return (stopped.or(Some(Stop::LeaseLost)), ended.await);
                }
                let _ = stdin.write_all(&[BEAT]).await;
            }
            stop = attempt.until_stopped(), if stopped.is_none() => {
                attempt.log("svcforge", "asking Helm to stop");
                let _ = stdin.write_all(&[STOP]).await;
                stopped = Some(stop);
            }
        }
    }
}

async fn stream(pipe: impl AsyncRead + Unpin, name: &'static str, attempt: &Attempt) {
    read(pipe, |line| attempt.log(name, line)).await;
}

async fn capture(pipe: impl AsyncRead + Unpin, attempt: &Attempt) -> String {
    let mut words = String::new();
    read(pipe, |line| {
        attempt.log("stderr", line);
        words.push_str(&inert(line));
        words.push('\n');
    })
    .await;
    words
}

/// Reads to the end, line by line; past the cap it reads on, so that the child never blocks, and keeps nothing.
async fn read(pipe: impl AsyncRead + Unpin, mut keep: impl FnMut(&str)) {
    let mut reader = BufReader::new(pipe);
    let (mut line, mut kept) = (Vec::new(), 0);
    loop {
        line.clear();
        let mut limited = tokio::io::AsyncReadExt::take(&mut reader, 64 * 1024);
        match limited.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(n) if kept + n <= MAX_OUTPUT => {
                kept += n;
                keep(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
            }
            Ok(_) if kept < usize::MAX / 2 => {
                kept = usize::MAX / 2;
                keep("… more than 1 MiB; the rest is not kept");
            }
            Ok(_) => {}
        }
    }
}
