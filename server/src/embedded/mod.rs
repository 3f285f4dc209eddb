//! What `svcforge up` brings along: a private Postgres and a local control plane, each process under a guard, each recorded.

mod control_plane;
mod leftovers;
mod pki;
mod ports;
mod postgres;
mod process;
mod volumes;

pub use control_plane::{ControlPlane, required_binaries};
pub use leftovers::{Lock, end_leftovers};
pub use ports::free_port;
pub use postgres::Postgres;
pub use process::{Guarded, Launcher};

/// Forgets everything that an `up` in this folder has kept.
///
/// # Errors
/// From the file system.
pub fn forget(dir: &std::path::Path) -> anyhow::Result<()> {
    postgres::forget(dir)?;
    match std::fs::remove_dir_all(dir.join("cluster")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
