//! Helm, supervised: the only module that starts processes for tasks. argv only, nothing inherited, nothing left behind.

mod argv;
pub mod guard;
mod install;
mod recover;
mod remove;
mod run;
mod workdir;

pub use run::Helm;
pub use workdir::Workdir;
