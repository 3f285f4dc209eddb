//! Instances: rows, their states and what changes them under lock.

mod page;
mod revision;
mod settings;
mod work;

pub use page::{Filter, list};
pub use revision::{list_revisions, record_revision, remember_revision, repoint, set_revision};
pub use settings::{end_hold, hold_version, set_expiry, set_pin, set_window};
pub use work::{Work, load_work};

use serde_json::{Map, Value};
use sqlx::{PgConnection, PgPool};
use svcforge_app::domain::{EntryKind, InstanceState};
use uuid::Uuid;

/// What an operation needs to know of an instance, under lock.
#[derive(Clone, Debug)]
pub struct Locked {
    /// Its id.
    pub id: Uuid,
    /// Its team.
    pub team_id: Uuid,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: InstanceState,
    /// The revision it points to.
    pub entry_revision_id: Uuid,
    /// The `ETag`.
    pub version: i64,
}

/// A row to write.
#[derive(Debug)]
pub struct NewInstance<'a> {
    /// Its id.
    pub id: Uuid,
    /// Its team.
    pub team_id: Uuid,
    /// Catalog entry.
    pub service_type: &'a str,
    /// How it is installed.
    pub kind: EntryKind,
    /// Its name.
    pub name: &'a str,
    /// The revision it points to.
    pub entry_revision_id: Uuid,
    /// Release or object name.
    pub release_name: &'a str,
    /// Where it lives.
    pub release_namespace: &'a str,
    /// Checked and completed.
    pub parameters: &'a Map<String, Value>,
    /// Seconds to live.
    pub ttl_seconds: Option<i64>,
    /// When the machine may upgrade it.
    pub maintenance_window: Option<&'a str>,
    /// Who asked.
    pub created_by: &'a str,
}

/// Adds an instance. The unique index on its name is `instance_name`.
///
/// # Errors
/// From Postgres.
pub async fn insert(db: &mut PgConnection, new: &NewInstance<'_>) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into instance (id, team_id, service_type, kind, name, entry_revision_id, release_name, release_namespace,
                               parameters, expires_at, created_by, maintenance_window)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, now() + make_interval(secs => $10::bigint::double precision), $11, $12)",
        new.id,
        new.team_id,
        new.service_type,
        new.kind.as_str(),
        new.name,
        new.entry_revision_id,
        new.release_name,
        new.release_namespace,
        Value::Object(new.parameters.clone()),
        new.ttl_seconds,
        new.created_by,
        new.maintenance_window
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Locks an instance (its lane, too) and reads it in a statement of its own.
///
/// # Errors
/// From Postgres.
pub async fn lock(db: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Locked>> {
    super::queue::lock_lanes(db, &[id]).await?;
    let row = sqlx::query!(
        "select id, team_id, name, state, entry_revision_id, version from instance where id = $1",
        id
    )
    .fetch_optional(db)
    .await?;
    row.map(|r| {
        Ok(Locked {
            id: r.id,
            team_id: r.team_id,
            name: r.name,
            state: state(&r.state)?,
            entry_revision_id: r.entry_revision_id,
            version: r.version,
        })
    })
    .transpose()
}

/// Moves an instance by compare-and-set. False is a lost race: a no-op, not an error.
///
/// # Errors
/// From Postgres.
pub async fn move_state(
    db: &mut PgConnection,
    id: Uuid,
    from: InstanceState,
    to: InstanceState,
    error: Option<&str>,
) -> sqlx::Result<bool> {
    let moved = sqlx::query!(
        "update instance set state = $3, last_error = $4 where id = $1 and state = $2",
        id,
        from.as_str(),
        to.as_str(),
        error
    )
    .execute(db)
    .await?;
    Ok(moved.rows_affected() == 1)
}

/// Keeps what went wrong, without a change of state.
///
/// # Errors
/// From Postgres.
pub async fn set_error(db: &mut PgConnection, id: Uuid, error: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set last_error = $2 where id = $1 and last_error is distinct from $2",
        id,
        error
    )
    .execute(db)
    .await?;
    Ok(())
}

/// The team of an instance, for the policy.
///
/// # Errors
/// From Postgres.
pub async fn find_team(pool: &PgPool, id: Uuid) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!("select team_id from instance where id = $1", id)
        .fetch_optional(pool)
        .await
}

/// Counts a change that is not in the row itself, so that an `ETag` seen before it is stale.
///
/// # Errors
/// From Postgres.
pub async fn touch(db: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!("update instance set updated_at = now() where id = $1", id)
        .execute(db)
        .await?;
    Ok(())
}

fn state(word: &str) -> sqlx::Result<InstanceState> {
    word.parse()
        .map_err(|e: String| sqlx::Error::Decode(e.into()))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
