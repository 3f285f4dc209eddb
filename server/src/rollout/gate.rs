//! What both gates know of an upgrade beyond its own row: its rollout as it is under lock, and whether it has begun before.

use crate::db::{rollout::Gate, standing::Row};
use svcforge_app::domain::{Act, Facts};

/// Facts for an upgrade of that act; `full` is for the caller to say.
pub(super) fn facts(row: &Row, act: Act, gate: Option<&Gate>) -> Facts {
    let mut facts = row.facts();
    if gate.is_some_and(|g| g.halted) && facts.halted.is_none() {
        facts.halted = Some("halted a moment ago".into());
    }
    if row.slot_since.is_some() {
        // What started may finish (C14): its window keeps only beginnings in, and a bad chart its slot.
        facts.window = None;
    }
    if act == Act::Upgrade {
        // A target nobody has decided of may be a downgrade, or break what runs.
        if facts.halted.is_none() && gate.is_some_and(|g| g.target != row.target_id) {
            facts.halted = Some("the catalog's newest version has not been looked at yet".into());
        }
        match row.state.as_str() {
            "ready" => {}
            // Under way: what it broke itself must not keep it from mending that.
            "upgrading" => facts.incomplete = None,
            other => facts.incomplete = Some(format!("it is {other}")),
        }
    }
    facts
}
