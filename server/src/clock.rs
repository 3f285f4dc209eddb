//! The only `now()` outside Postgres. Scheduling reads Postgres' clock, never this one: it is for display and for files.

/// The time on this machine.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
