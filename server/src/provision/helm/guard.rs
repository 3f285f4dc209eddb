//! `svcforge guard`: the small parent of every process svcforge starts. It holds the child's process group and ends it when
//! its own stdin closes (whoever started it is dead), when it is told to, or when no heartbeat arrived for too long: so a
//! killed or frozen worker never leaves a live Helm behind. Plain threads, no runtime: `PR_SET_PDEATHSIG` fires when the
//! *thread* that spawned the child ends, and here that is the main thread.

use nix::{
    sys::{
        prctl,
        signal::{self, Signal},
    },
    unistd::Pid,
};
use std::{
    io::Read,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

/// Byte on the guard's stdin: an acknowledged heartbeat.
pub const BEAT: u8 = b'b';
/// Byte on the guard's stdin: end the child.
pub const STOP: u8 = b's';

/// How a child is guarded.
#[derive(clap::Args, Clone, Debug)]
pub struct GuardArgs {
    /// SIGTERM after this long without a heartbeat, milliseconds; 0 for a child without heartbeats.
    #[arg(long, default_value_t = 0)]
    pub term_after_ms: u64,
    /// SIGKILL after this long without one.
    #[arg(long, default_value_t = 0)]
    pub kill_after_ms: u64,
    /// How long it has been silent already when the child starts.
    #[arg(long, default_value_t = 0)]
    pub silent_ms: u64,
    /// Between the stop signal and SIGKILL.
    #[arg(long, default_value_t = 20_000)]
    pub grace_ms: u64,
    /// Whether the stop signal is SIGINT (what Postgres calls a fast shutdown) instead of SIGTERM.
    #[arg(long)]
    pub interrupt: bool,
    /// Run the child as this user (for Postgres, which refuses to run as root).
    #[arg(long, requires = "gid")]
    pub uid: Option<u32>,
    /// And as this group.
    #[arg(long)]
    pub gid: Option<u32>,
    /// The child's argv.
    #[arg(last = true, required = true)]
    pub argv: Vec<String>,
}

/// Guards the child to its end; returns the exit code to end with.
///
/// # Errors
/// When the child cannot be started.
pub fn run(args: &GuardArgs) -> anyhow::Result<i32> {
    let mut command = Command::new(&args.argv[0]);
    command
        .args(&args.argv[1..])
        .stdin(Stdio::null())
        .process_group(0);
    if let (Some(uid), Some(gid)) = (args.uid, args.gid) {
        command.uid(uid).gid(gid);
    }
    // SAFETY: prctl is async-signal-safe; nothing is allocated or locked between fork and exec.
    #[allow(
        unsafe_code,
        reason = "the only way to have the child die with a guard that is killed -9"
    )]
    unsafe {
        command.pre_exec(|| prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into));
    }
    let mut child = command
        .spawn()
        .map_err(|e| anyhow::anyhow!("cannot start {}: {e}", args.argv[0]))?;
    let group = Pid::from_raw(-i32::try_from(child.id())?);
    let heard = listen();
    // A signal meant for all of a group or machine must not make an orphan: it stops the child in order.
    let told = Arc::new(AtomicBool::new(false));
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signal_hook::flag::register(signal as i32, told.clone())?;
    }
    let stop_signal = if args.interrupt {
        Signal::SIGINT
    } else {
        Signal::SIGTERM
    };
    let before = Duration::from_millis(args.silent_ms);
    let beat = Instant::now().checked_sub(before);
    let (mut beat, mut kill_at) = (beat.unwrap_or_else(Instant::now), None::<Instant>);
    let span = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
    loop {
        if let Some(status) = child.try_wait()? {
            // What the child left in its group goes with it.
            let _ = signal::kill(group, Signal::SIGKILL);
            return Ok(code(status));
        }
        let silent = beat.elapsed();
        let mut stop = told.load(Ordering::Relaxed);
        match heard.recv_timeout(Duration::from_millis(20)) {
            Ok(BEAT) => beat = Instant::now(),
            Ok(_) | Err(mpsc::RecvTimeoutError::Disconnected) => stop = true,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        stop |= span(args.term_after_ms).is_some_and(|limit| silent > limit);
        if stop && kill_at.is_none() {
            let _ = signal::kill(group, stop_signal);
            kill_at = Some(Instant::now() + Duration::from_millis(args.grace_ms));
        }
        let too_silent = span(args.kill_after_ms).is_some_and(|limit| silent > limit);
        if too_silent || kill_at.is_some_and(|at| Instant::now() > at) {
            let _ = signal::kill(group, Signal::SIGKILL);
        }
        if kill_at.is_some() {
            // A closed channel answers at once; do not spin.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn listen() -> mpsc::Receiver<u8> {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(std::io::stdin().read(&mut byte), Ok(1)) {
            if tx.send(byte[0]).is_err() {
                return;
            }
        }
    });
    rx
}

fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
