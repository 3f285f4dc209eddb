//! `svcforge testbed`: the Postgres and the control plane of `up` without svcforge itself, for the tests.

use super::say;
use crate::embedded::{self, ControlPlane, Launcher, Lock, Postgres};
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct TestbedArgs {
    /// Folder of everything.
    #[arg(long)]
    dir: PathBuf,
    /// Folder with the control plane's binaries.
    #[arg(long)]
    local_bin: PathBuf,
}

/// Runs until a signal, or until its parent dies.
pub async fn run(args: TestbedArgs) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.dir)?;
    let dir = args.dir.canonicalize()?;
    let _lock = Lock::take(&dir)?;
    tokio::task::block_in_place(|| embedded::end_leftovers(&dir))?;
    let launcher = Launcher::new(&std::env::current_exe()?, &dir);
    let mut postgres = Postgres::start(&launcher, &dir).await?;
    let mut plane =
        ControlPlane::start(&launcher, &args.local_bin, &dir, "polychrome-apps").await?;
    let env = format!(
        "export SVCFORGE_TEST_PG='{}'\nexport SVCFORGE_TEST_KUBECONFIG='{}'\nexport SVCFORGE_TEST_BIN='{}'\n",
        postgres.dsn,
        plane.kubeconfig.display(),
        plane.bin.display()
    );
    std::fs::write(dir.join("env.new"), env)?;
    std::fs::rename(dir.join("env.new"), dir.join("env"))?;
    say("testbed ready");
    tokio::select! {
        () = super::serve::stopped_by_signal() => {}
        () = super::up::orphaned() => {}
    }
    tokio::task::block_in_place(|| {
        plane.stop();
        postgres.stop();
    });
    Ok(())
}
