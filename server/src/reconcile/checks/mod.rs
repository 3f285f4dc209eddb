//! The four checks. Each is a query for work, never a reaction to an event: pure over what it read, set-based in SQL, fenced by
//! the lease in everything it writes.

pub mod drift;
mod drift_plan;
pub mod lease_expiry;
mod leftovers;
pub mod ttl;
pub mod version_drift;

pub use drift_plan::{Finding, MOST_REPAIRS, Repairs, judge, plan_repairs, unknown_releases};

/// Rows a transaction works on at most.
const BATCH: usize = 1000;
