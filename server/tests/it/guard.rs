//! The guard: whatever happens to who started it, the child ends.

use crate::support::cluster::svcforge_bin;
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A guard over a shell that tells its pid, has a grandchild, and waits.
fn start(args: &[&str], script: &str) -> (Child, Vec<i32>) {
    let mut child = Command::new(svcforge_bin())
        .arg("guard")
        .args(args)
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pids = lines
        .next()
        .unwrap()
        .unwrap()
        .split_whitespace()
        .map(|p| p.parse().unwrap())
        .collect();
    (child, pids)
}

const TREE: &str = "sleep 300 & echo $$ $!; wait";
const STUBBORN: &str = "trap '' TERM; sleep 300 & echo $$ $!; while true; do wait; done";

fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

fn all_gone(pids: &[i32], within: Duration) {
    let until = Instant::now() + within;
    while pids.iter().any(|p| alive(*p)) {
        assert!(
            Instant::now() < until,
            "still there: {:?}",
            pids.iter().filter(|p| alive(**p)).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn ends_its_group_when_its_stdin_closes() {
    let (mut guard, pids) = start(&["--grace-ms=2000"], TREE);
    drop(guard.stdin.take());
    all_gone(&pids, Duration::from_secs(3));
    guard.wait().unwrap();
}

/// Silence before its start counts: what was acknowledged long ago is no heartbeat of now.
#[test]
fn counts_the_silence_before_it() {
    let began = Instant::now();
    let args = ["--kill-after-ms=60000", "--silent-ms=59500"];
    let (mut guard, pids) = start(&args, STUBBORN);
    all_gone(&pids, Duration::from_secs(3));
    assert!(began.elapsed() > Duration::from_millis(400));
    guard.wait().unwrap();
}

#[test]
fn kills_what_ignores_the_signal_after_the_grace() {
    let (mut guard, pids) = start(&["--grace-ms=300"], STUBBORN);
    guard.stdin.as_mut().unwrap().write_all(b"s").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(alive(pids[0]), "it has its grace");
    all_gone(&pids, Duration::from_secs(3));
    guard.wait().unwrap();
}

#[test]
fn lives_on_heartbeats_and_ends_in_silence() {
    let (mut guard, pids) = start(
        &[
            "--term-after-ms=400",
            "--kill-after-ms=800",
            "--grace-ms=200",
        ],
        TREE,
    );
    for _ in 0..10 {
        guard.stdin.as_mut().unwrap().write_all(b"b").unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(alive(pids[0]), "it has been heard of all the time");
    all_gone(&pids, Duration::from_secs(3));
    guard.wait().unwrap();
}

#[test]
fn killed_itself_it_takes_the_child_along() {
    let (mut guard, pids) = start(&["--grace-ms=2000"], "echo $$; exec sleep 300");
    guard.kill().unwrap();
    guard.wait().unwrap();
    all_gone(&pids, Duration::from_secs(2));
}

#[test]
fn passes_the_exit_code_on() {
    for (script, code) in [("echo 1; exit 7", 7), ("echo 1; kill -KILL $$", 137)] {
        let (mut guard, _) = start(&[], script);
        // `wait` closes stdin, which would end the child.
        let _stdin = guard.stdin.take();
        assert_eq!(guard.wait().unwrap().code(), Some(code), "{script}");
    }
}
