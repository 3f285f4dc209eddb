//! The command line: parse and go. The only place where parts are built and joined.

mod admin;
mod admin_user;
mod adopt;
mod catalog;
mod crd;
mod logging;
mod migrate;
mod openapi;
mod reconcile;
mod reconciler;
mod run_file;
mod seed;
mod serve;
mod testbed;
mod up;

use crate::provision::helm::guard::{self, GuardArgs};
use clap::{Parser, Subcommand};
use std::{io::Write, process::ExitCode};

/// Self-service platform for running services.
#[derive(Parser, Debug)]
#[command(name = "svcforge", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Everything on this machine, with a Postgres and a control plane of its own.
    Up(Box<up::UpArgs>),
    /// The platform, on the Postgres and the cluster that are named.
    Serve(Box<serve::ServeArgs>),
    /// The reconciler alone; `--once` runs one tick.
    Reconcile(Box<reconcile::ReconcileArgs>),
    /// What an admin needs when nobody can sign in; works with the database alone.
    Admin(admin::AdminArgs),
    /// Labels a release that was made before svcforge labelled them, so that it may be touched.
    Adopt(adopt::AdoptArgs),
    /// Applies missing migrations.
    Migrate(migrate::MigrateArgs),
    /// Checks a catalog without publishing it.
    #[command(subcommand)]
    Catalog(catalog::CatalogCommand),
    /// Prints the CRDs, or writes them into a folder.
    Crd(crd::CrdArgs),
    /// Prints the API's OpenAPI description.
    Openapi,
    /// Fills the database with instances to look at (simulated cluster only).
    Seed(seed::SeedArgs),
    /// Postgres and control plane for the tests.
    #[command(hide = true)]
    Testbed(testbed::TestbedArgs),
    /// Guards a child process (svcforge starts this itself).
    #[command(hide = true)]
    Guard(GuardArgs),
}

/// Runs the command line.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    crate::tls::install();
    let done = match cli.command {
        // Before any thread exists.
        Command::Guard(args) => match guard::run(&args) {
            Ok(code) => return ExitCode::from(u8::try_from(code).unwrap_or(1)),
            Err(error) => Err(error),
        },
        Command::Crd(args) => crd::run(&args),
        Command::Openapi => openapi::run(),
        Command::Catalog(command) => catalog::run(&command),
        Command::Up(args) => runtime().and_then(|rt| rt.block_on(up::run(*args))),
        Command::Serve(args) => runtime().and_then(|rt| rt.block_on(serve::run(*args))),
        Command::Reconcile(args) => {
            match runtime().and_then(|rt| rt.block_on(reconcile::run(*args))) {
                Ok(code) => return code,
                Err(error) => Err(error),
            }
        }
        Command::Admin(args) => runtime().and_then(|rt| rt.block_on(admin::run(args))),
        Command::Adopt(args) => runtime().and_then(|rt| rt.block_on(adopt::run(args))),
        Command::Migrate(args) => runtime().and_then(|rt| rt.block_on(migrate::run(args))),
        Command::Testbed(args) => runtime().and_then(|rt| rt.block_on(testbed::run(args))),
        Command::Seed(args) => runtime().and_then(|rt| rt.block_on(seed::run(args))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "svcforge: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// At least four threads, even on one CPU (leptos#4647).
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let threads = std::thread::available_parallelism().map_or(4, |n| n.get().max(4));
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()?)
}

/// Says a line to the person at the terminal.
fn say(line: impl AsRef<str>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", line.as_ref());
    let _ = out.flush();
}
