//! Whole `svcforge` processes beside the test.

use super::{
    TestApp,
    cluster::{helm_bin, svcforge_bin},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

/// A child that is ended with the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGCONT);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }
}

/// `svcforge serve` with those roles, on free ports, against that cluster and the app's database.
pub fn serve(app: &TestApp, roles: &str, kubeconfig: &Path) -> Command {
    let mut command = Command::new(svcforge_bin());
    command
        .args(["serve", "--roles", roles, "--listen", "127.0.0.1:0"])
        .args(["--metrics-port", "0"])
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--helm-bin={}", helm_bin().display()))
        .env("SVCFORGE_PG_DSN", &app.db.dsn)
        .stdout(Stdio::null());
    command
}
