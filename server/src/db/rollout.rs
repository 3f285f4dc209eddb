//! Rollouts: one row a type, and `*` for everything. Whoever starts an upgrade locks them after the lanes, `*` first.

use super::Timestamptz;
use sqlx::{PgConnection, PgExecutor};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The row that halts everything.
pub const ALL: &str = "*";

/// A type's rollout, and the entry that the catalog offers now.
#[derive(Clone, Debug)]
pub struct Row {
    /// The type.
    pub service_type: String,
    /// `active` or `halted`.
    pub rollout_state: String,
    /// Why it was last halted or resumed.
    pub reason: Option<String>,
    /// By whom.
    pub changed_by: Option<String>,
    /// Since when.
    pub since: Timestamptz,
    /// What was decided of.
    pub target_revision_id: Option<Uuid>,
    /// The cap.
    pub max_in_flight: i32,
    /// What the catalog offers.
    pub current_id: Option<Uuid>,
    /// Its version.
    pub current_version: Option<String>,
    /// Its entry.
    pub spec: Option<serde_json::Value>,
    /// Upgrades that hold a slot, or have been let in.
    pub taken: i64,
}

impl Row {
    /// Whether it is halted.
    pub fn halted(&self) -> bool {
        self.rollout_state == "halted"
    }
}

/// Every type's.
///
/// # Errors
/// From Postgres.
pub async fn list(db: impl PgExecutor<'_>) -> sqlx::Result<Vec<Row>> {
    sqlx::query_as!(
        Row,
        r#"select ro.service_type, ro.rollout_state, ro.reason, ro.changed_by, ro.since, ro.target_revision_id, ro.max_in_flight,
                  c.id as "current_id?", c.chart_version as "current_version?", c.spec as "spec?",
                  (select count(*) from task k where k.rollout_type = ro.service_type
                     and (k.slot_since is not null or k.state in ('blocked', 'ready', 'running'))) as "taken!"
           from rollout ro
           left join catalog_item ci on ci.catalog_revision_id = (select max(id) from catalog_revision) and ci.service_type = ro.service_type
           left join entry_revision c on c.id = ci.entry_revision_id
           where ro.service_type <> '*' order by ro.service_type"#
    )
    .fetch_all(db)
    .await
}

/// Whether a halt, of a type or of everything, is on; with its words.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The type.
    pub service_type: String,
    /// Whether it is halted.
    pub halted: bool,
    /// The cap.
    pub max_in_flight: i32,
    /// Upgrades that hold a slot.
    pub in_flight: i64,
    /// Upgrades that hold a slot or have been let in.
    pub taken: i64,
    /// The target that was decided of.
    pub target: Option<Uuid>,
}

/// Locks the rollouts of these types for the transaction, everything's shared, and reads them in a statement of its own. Lanes
/// that are needed must be locked before.
///
/// # Errors
/// From Postgres.
pub async fn lock(db: &mut PgConnection, types: &[String]) -> sqlx::Result<BTreeMap<String, Gate>> {
    sqlx::query!("select service_type from rollout where service_type = '*' for share")
        .fetch_all(&mut *db)
        .await?;
    sqlx::query!(
        "select service_type from rollout where service_type = any($1) order by service_type for no key update",
        types
    )
    .fetch_all(&mut *db)
    .await?;
    let rows = sqlx::query!(
        r#"select ro.service_type, ro.max_in_flight, ro.target_revision_id,
                  (ro.rollout_state = 'halted' or (select rollout_state from rollout where service_type = '*') = 'halted') as "halted!",
                  (select count(*) from task k where k.rollout_type = ro.service_type and k.slot_since is not null) as "in_flight!",
                  (select count(*) from task k where k.rollout_type = ro.service_type
                     and (k.slot_since is not null or k.state in ('blocked', 'ready', 'running'))) as "taken!"
           from rollout ro where ro.service_type = any($1)"#,
        types
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| {
            let gate = Gate {
                service_type: r.service_type.clone(),
                halted: r.halted,
                max_in_flight: r.max_in_flight,
                in_flight: r.in_flight,
                taken: r.taken,
                target: r.target_revision_id,
            };
            (r.service_type, gate)
        })
        .collect())
}

/// Gives an attempt's upgrade its slot, which it keeps until it has ended, and the target it will be judged by. Fenced.
///
/// # Errors
/// From Postgres.
pub async fn take_slot(
    db: &mut PgConnection,
    task: Uuid,
    token: i64,
    payload: &serde_json::Value,
    reason: &str,
) -> sqlx::Result<bool> {
    let taken = sqlx::query!(
        "update task set slot_since = coalesce(slot_since, clock_timestamp()), payload = $3, reason = $4
         where id = $1 and token = $2",
        task,
        token,
        payload,
        reason
    )
    .execute(db)
    .await?;
    Ok(taken.rows_affected() == 1)
}

/// Halts a type, or everything. False when it was halted already: then the older reason stands.
///
/// # Errors
/// From Postgres.
pub async fn halt(db: &mut PgConnection, of: &str, by: &str, reason: &str) -> sqlx::Result<bool> {
    let halted = sqlx::query!(
        "update rollout set rollout_state = 'halted', reason = $3, changed_by = $2, since = clock_timestamp()
         where service_type = $1 and rollout_state <> 'halted'",
        of,
        by,
        reason
    )
    .execute(db)
    .await?;
    Ok(halted.rows_affected() == 1)
}

/// Resumes a type, or everything. False when it was not halted.
///
/// # Errors
/// From Postgres.
pub async fn resume(db: &mut PgConnection, of: &str, by: &str, reason: &str) -> sqlx::Result<bool> {
    let resumed = sqlx::query!(
        "update rollout set rollout_state = 'active', reason = $3, changed_by = $2, since = clock_timestamp()
         where service_type = $1 and rollout_state = 'halted'",
        of,
        by,
        reason
    )
    .execute(db)
    .await?;
    Ok(resumed.rows_affected() == 1)
}

/// Whether there is such a rollout.
///
/// # Errors
/// From Postgres.
pub async fn exists(db: impl PgExecutor<'_>, of: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (select from rollout where service_type = $1) as "is!""#,
        of
    )
    .fetch_one(db)
    .await
}

/// The halt of everything: its reason, who, since.
///
/// # Errors
/// From Postgres.
pub async fn find_halt_of_all(
    db: impl PgExecutor<'_>,
) -> sqlx::Result<Option<svcforge_app::domain::Halt>> {
    let row = sqlx::query!(
        "select reason, changed_by, since from rollout where service_type = '*' and rollout_state = 'halted'"
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|r| svcforge_app::domain::Halt {
        reason: r.reason.unwrap_or_default(),
        by: r.changed_by.unwrap_or_default(),
        since: r.since.to_jiff(),
    }))
}

/// How many ready instances run each version, by type.
///
/// # Errors
/// From Postgres.
pub async fn versions(
    db: impl PgExecutor<'_>,
    service_type: Option<&str>,
) -> sqlx::Result<BTreeMap<String, Vec<(String, i64)>>> {
    let rows = sqlx::query!(
        r#"select i.service_type, r.chart_version, n as "n!" from (
             select service_type, entry_revision_id, count(*) as n from instance
             where state in ('ready', 'upgrading') and ($1::text is null or service_type = $1) group by 1, 2) i
           join entry_revision r on r.id = i.entry_revision_id order by n desc, r.chart_version"#,
        service_type
    )
    .fetch_all(db)
    .await?;
    let mut found = BTreeMap::<String, Vec<(String, i64)>>::new();
    for r in rows {
        found
            .entry(r.service_type)
            .or_default()
            .push((r.chart_version, r.n));
    }
    Ok(found)
}

/// Keeps what was decided of a new target, and the cap in force.
///
/// # Errors
/// From Postgres.
pub async fn set_target(
    db: &mut PgConnection,
    of: &str,
    target: Uuid,
    max_in_flight: i32,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update rollout set target_revision_id = $2, max_in_flight = $3
         where service_type = $1 and (target_revision_id is distinct from $2 or max_in_flight <> $3)",
        of,
        target,
        max_in_flight
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Whether a task has started and holds its slot.
///
/// # Errors
/// From Postgres.
pub async fn has_slot(db: &mut PgConnection, task: Uuid) -> sqlx::Result<bool> {
    let slot = sqlx::query_scalar!(
        r#"select slot_since is not null as "has!" from task where id = $1"#,
        task
    )
    .fetch_optional(db)
    .await?;
    Ok(slot == Some(true))
}

/// Adds a reason to a halt that is on: whoever resumes must have read both.
///
/// # Errors
/// From Postgres.
pub async fn add_reason(db: &mut PgConnection, of: &str, reason: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "update rollout set reason = coalesce(reason || ' · and ', '') || $2 where service_type = $1 and rollout_state = 'halted'",
        of,
        reason
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Says of upgrades that wait where they will lead now. Locks their lanes.
///
/// # Errors
/// From Postgres.
pub async fn retell(db: &mut PgConnection, of: &str, version: &str) -> sqlx::Result<()> {
    let lanes = sqlx::query_scalar!(
        "select instance_id from task where rollout_type = $1 and act = 'upgrade' and state <> 'running'",
        of
    )
    .fetch_all(&mut *db)
    .await?;
    super::queue::lock_lanes(db, &lanes).await?;
    sqlx::query!(
        "update task set reason = 'upgrade from ' || r.chart_version || ' to ' || $2
         from instance i join entry_revision r on r.id = i.entry_revision_id
         where task.instance_id = i.id and task.rollout_type = $1 and task.act = 'upgrade' and task.state <> 'running'",
        of,
        version
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Window-parked upgrades of these types that have not started: task, instance and window.
///
/// # Errors
/// From Postgres.
pub async fn parked_by_window(
    db: impl PgExecutor<'_>,
    types: &[String],
) -> sqlx::Result<Vec<(Uuid, Uuid, String)>> {
    let rows = sqlx::query!(
        r#"select k.id, k.instance_id, i.maintenance_window as "window!" from task k join instance i on i.id = k.instance_id
           where k.rollout_type = any($1) and k.state = 'parked' and k.slot_since is null and k.act = 'upgrade'
             and i.maintenance_window is not null"#,
        types
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| (r.id, r.instance_id, r.window))
        .collect())
}

/// Makes parked upgrades due. The lanes must be locked.
///
/// # Errors
/// From Postgres.
pub async fn bring_forward(db: &mut PgConnection, tasks: &[Uuid]) -> sqlx::Result<u64> {
    let moved = sqlx::query!(
        "update task set state = 'gated', run_after = now() where id = any($1) and state = 'parked' and slot_since is null",
        tasks
    )
    .execute(db)
    .await?;
    Ok(moved.rows_affected())
}

/// Why a type may not be moved on, in words: its own halt, or the halt of everything.
///
/// # Errors
/// From Postgres.
pub async fn find_halt(
    db: impl PgExecutor<'_>,
    service_type: &str,
) -> sqlx::Result<Option<String>> {
    let row = sqlx::query!(
        "select service_type, reason, changed_by, since from rollout
         where service_type in ('*', $1) and rollout_state = 'halted' order by service_type limit 1",
        service_type
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|r| {
        let of = if r.service_type == ALL {
            "everything "
        } else {
            ""
        };
        super::standing::halt_words(
            of,
            r.changed_by.as_deref(),
            Some(r.since.to_jiff()),
            r.reason.as_deref(),
        )
    }))
}

/// The newest revision of a type that serves somewhere: what a new instance gets while its rollout is halted.
///
/// # Errors
/// From Postgres.
pub async fn find_proven(
    db: impl PgExecutor<'_>,
    service_type: &str,
) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "select r.id from entry_revision r
         where r.service_type = $1 and exists (
            select from instance i join instance_observed o on o.instance_id = i.id
            where i.entry_revision_id = r.id and i.state = 'ready' and o.verdict = 'complete')
         order by r.created_at desc, r.id desc limit 1",
        service_type
    )
    .fetch_optional(db)
    .await
}
