//! Integration tests: one binary that mirrors `src`. They run against a real Postgres, a real API server and a real Helm,
//! which `./dev test` starts; the scripted provisioner is for pure logic and for faults that cannot be had otherwise.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod api;
mod authz;
mod catalog;
mod cli;
mod cluster;
mod controller;
mod crash;
mod drift_cluster;
mod faults;
mod guard;
mod killed;
mod lease;
mod notify;
mod ops;
mod pooler;
mod queue;
mod reconcile;
mod rollouts;
mod schema;
mod support;
mod telemetry;
mod worker;
