//! The works of svcforge. `cli/` is the only place where parts are built and joined; see ARCHITECTURE.md for the map.

pub mod authz;
pub mod catalog;
pub mod changes;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod db;
pub mod embedded;
pub mod error;
pub mod http;
pub mod ids;
pub mod lease;
pub mod notify;
pub mod ops;
pub mod portal;
pub mod provision;
pub mod queue;
pub mod reconcile;
pub mod rollout;
pub mod tasks;
pub mod telemetry;
pub mod tls;
