//! The test app: a database of its own, named clients, a worker that can be driven.

pub mod app;
pub mod cluster;
pub mod db;
pub mod process;
pub mod proxy;
pub mod reconciler;

pub use app::TestApp;
pub use db::TestDb;
