//! Instances.

use super::Timestamptz;
use jiff::Timestamp;
use serde_json::{Map, Value};
use sqlx::{PgConnection, PgExecutor, PgPool};
use svcforge_app::domain::{
    DriftVerdict, EntryKind, Instance, InstanceId, InstanceState, Pause, Pin, Readiness, Release,
    Verdict, Window, standing::explain,
};
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

/// Points an instance to another revision with these parameters.
///
/// # Errors
/// From Postgres.
pub async fn repoint(
    db: &mut PgConnection,
    id: Uuid,
    revision: Uuid,
    parameters: &Value,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set entry_revision_id = $2, parameters = $3 where id = $1",
        id,
        revision,
        parameters
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Records the Helm revision that an attempt is about to write. Fenced: false when the attempt has lost its lease.
///
/// # Errors
/// From Postgres.
pub async fn record_revision(
    pool: &PgPool,
    id: Uuid,
    revision: i32,
    task: Uuid,
    token: i64,
) -> sqlx::Result<bool> {
    let recorded = sqlx::query!(
        "update instance set release_revision = $2, release_token = $4 where id = $1 and exists (select from task where id = $3 and token = $4)",
        id,
        revision,
        task,
        token
    )
    .execute(pool)
    .await?;
    Ok(recorded.rows_affected() == 1)
}

/// What a worker needs to install or remove an instance.
#[derive(Clone, Debug)]
pub struct Work {
    /// Its state.
    pub state: InstanceState,
    /// Slug of its team.
    pub team: String,
    /// Its name.
    pub name: String,
    /// Catalog entry.
    pub service_type: String,
    /// Release or object name.
    pub release_name: String,
    /// Where it lives.
    pub release_namespace: String,
    /// The highest revision an attempt of ours recorded.
    pub release_revision: Option<i32>,
    /// That attempt's token.
    pub release_token: Option<i64>,
    /// The revision it points to.
    pub entry_revision_id: Uuid,
    /// Checked and completed.
    pub parameters: Map<String, Value>,
}

/// Reads that.
///
/// # Errors
/// From Postgres.
pub async fn load_work(db: impl PgExecutor<'_>, id: Uuid) -> sqlx::Result<Work> {
    let r = sqlx::query!(
        "select i.state, t.slug, i.name, i.service_type, i.release_name, i.release_namespace, i.release_revision, i.release_token, i.entry_revision_id, i.parameters
         from instance i join team t on t.id = i.team_id where i.id = $1",
        id
    )
    .fetch_one(db)
    .await?;
    Ok(Work {
        state: state(&r.state)?,
        team: r.slug,
        name: r.name,
        service_type: r.service_type,
        release_name: r.release_name,
        release_namespace: r.release_namespace,
        release_revision: r.release_revision,
        release_token: r.release_token,
        entry_revision_id: r.entry_revision_id,
        parameters: object(r.parameters),
    })
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

/// Which instances to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of these teams; of all when none.
    pub teams: Option<Vec<Uuid>>,
    /// Of the team of that slug.
    pub team: Option<String>,
    /// Of that type.
    pub service_type: Option<String>,
    /// In that state; when none, all but deleted ones.
    pub state: Option<InstanceState>,
    /// Whose name contains this.
    pub q: Option<String>,
    /// Just this one, in any state.
    pub id: Option<Uuid>,
    /// With that drift.
    pub drift: Option<DriftVerdict>,
    /// Older than this one: its creation and id.
    pub before: Option<(Timestamp, Uuid)>,
}

struct Row {
    id: Uuid,
    team: String,
    service_type: String,
    kind: String,
    name: String,
    state: String,
    state_since: Timestamptz,
    release_name: String,
    release_namespace: String,
    release_revision: Option<i32>,
    chart_version: String,
    target_version: Option<String>,
    parameters: Value,
    expires_at: Option<Timestamptz>,
    created_by: String,
    created_at: Timestamptz,
    updated_at: Timestamptz,
    last_error: Option<String>,
    version: i64,
    verdict: Option<String>,
    sentence: Option<String>,
    parts: Option<Value>,
    observed_at: Option<Timestamptz>,
    drift: String,
    drift_detail: Option<String>,
}

/// A page of instances, newest first: one query, whatever the page holds.
///
/// # Errors
/// From Postgres.
pub async fn list(pool: &PgPool, f: &Filter, limit: i64) -> sqlx::Result<Vec<Instance>> {
    let rows = sqlx::query_as!(
        Row,
        r#"select i.id, t.slug as team, i.service_type, i.kind, i.name, i.state, i.state_since, i.release_name, i.release_namespace,
                  i.release_revision, r.chart_version, c.chart_version as "target_version?", i.parameters, i.expires_at, i.created_by,
                  i.created_at, i.updated_at, i.last_error, i.version,
                  o.verdict as "verdict?", o.sentence as "sentence?", o.parts as "parts?", o.at as "observed_at?",
                  case when i.state not in ('ready', 'upgrading') then 'none' when d.verdict is not null then d.verdict
                       when exists (select from drift_sweep where error is null) and i.state = 'ready' then 'present' else 'unknown' end as "drift!",
                  d.detail as "drift_detail?"
           from instance i
           join team t on t.id = i.team_id
           join entry_revision r on r.id = i.entry_revision_id
           left join catalog_item ci on ci.catalog_revision_id = (select max(id) from catalog_revision) and ci.service_type = i.service_type
           left join entry_revision c on c.id = ci.entry_revision_id
           left join instance_observed o on o.instance_id = i.id
           left join instance_drift d on d.instance_id = i.id and i.state = 'ready'
           where ($1::uuid[] is null or i.team_id = any($1)) and ($2::text is null or t.slug = $2)
             and ($3::text is null or i.service_type = $3)
             and ($7::uuid is not null or i.state = coalesce($4, i.state) and ($4::text is not null or i.state <> 'deleted'))
             and ($5::text is null or position(lower($5) in i.name) > 0)
             and ($6::timestamptz is null or (i.created_at, i.id) < ($6, $8::uuid))
             and ($7::uuid is null or i.id = $7)
             and ($10::text is null or $10 = case when i.state not in ('ready', 'upgrading') then 'none' when d.verdict is not null then d.verdict
                    when exists (select from drift_sweep where error is null) and i.state = 'ready' then 'present' else 'unknown' end)
           order by i.created_at desc, i.id desc limit $9"#,
        f.teams.as_deref(),
        f.team,
        f.service_type,
        f.state.map(InstanceState::as_str),
        f.q,
        f.before.map(|(at, _)| Timestamptz::from(at)) as Option<Timestamptz>,
        f.id,
        f.before.map(|(_, id)| id),
        limit,
        f.drift.map(DriftVerdict::as_str)
    )
    .fetch_all(pool)
    .await?;
    let ids: Vec<Uuid> = rows.iter().map(|r| r.id).collect();
    let mut standings: std::collections::HashMap<Uuid, super::standing::Row> =
        super::standing::of(pool, &ids)
            .await?
            .into_iter()
            .map(|s| (s.instance_id, s))
            .collect();
    rows.into_iter()
        .map(|row| {
            let standing = standings.remove(&row.id);
            view(row, standing)
        })
        .collect()
}

fn view(r: Row, standing: Option<super::standing::Row>) -> sqlx::Result<Instance> {
    let state = state(&r.state)?;
    let decode = |e: serde_json::Error| sqlx::Error::Decode(e.into());
    let readiness = match (r.verdict, r.sentence, r.parts) {
        (Some(verdict), Some(sentence), Some(parts)) if state != InstanceState::Deleted => {
            Readiness {
                verdict: serde_json::from_value::<Verdict>(Value::String(verdict))
                    .map_err(decode)?,
                sentence,
                parts: serde_json::from_value(parts).map_err(decode)?,
                observed_at: r.observed_at.map(Timestamptz::to_jiff),
            }
        }
        _ => Readiness::unknown(match state {
            InstanceState::Requested => "Waiting for a worker",
            InstanceState::Deleted => "Removed",
            _ => "Nothing of it has been seen in the cluster yet",
        }),
    };
    let window = standing.as_ref().and_then(|s| s.maintenance_window.clone());
    let next_openings = match (&standing, window.as_deref().map(Window::parse)) {
        (Some(s), Some(Ok(window))) => window.next_openings(s.now.to_jiff(), 3),
        _ => vec![],
    };
    let facts = standing.as_ref().map(|s| s.facts());
    Ok(Instance {
        id: InstanceId(r.id),
        team: r.team,
        service_type: r.service_type,
        kind: if r.kind == "helm" {
            EntryKind::Helm
        } else {
            EntryKind::ServiceDefinition
        },
        name: r.name,
        state,
        state_since: r.state_since.to_jiff(),
        release: Release {
            name: r.release_name,
            namespace: r.release_namespace,
            revision: r.release_revision,
        },
        chart_version: r.chart_version,
        target_version: r.target_version,
        parameters: object(r.parameters),
        readiness,
        drift: DriftVerdict::parse(&r.drift).unwrap_or(DriftVerdict::Unknown),
        drift_detail: r.drift_detail,
        upgrade: standing
            .as_ref()
            .map(|s| explain(&s.standing(None)))
            .unwrap_or_default(),
        maintenance_window: window,
        next_openings,
        pin: standing.as_ref().and_then(|s| {
            Some(Pin {
                until: s.pin_until?.to_jiff(),
                reason: s.pin_reason.clone().unwrap_or_default(),
                by: s.pin_by.clone().unwrap_or_default(),
            })
        }),
        hold: facts.as_ref().and_then(|f| f.held.clone()),
        paused: facts.and_then(|f| f.paused),
        pause: None::<Pause>,
        expires_at: r.expires_at.map(Timestamptz::to_jiff),
        created_by: r.created_by,
        created_at: r.created_at.to_jiff(),
        updated_at: r.updated_at.to_jiff(),
        last_error: r.last_error,
        version: r.version,
    })
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

/// Sets when an instance is removed by itself.
///
/// # Errors
/// From Postgres.
pub async fn set_expiry(
    db: &mut PgConnection,
    id: Uuid,
    at: Option<Timestamp>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set expires_at = $2 where id = $1",
        id,
        at.map(Timestamptz::from) as Option<Timestamptz>
    )
    .execute(db)
    .await?;
    Ok(())
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

/// Remembers what an instance runs now, when that differs from what it ran before.
///
/// # Errors
/// From Postgres.
pub async fn remember_revision(db: &mut PgConnection, id: Uuid, task: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into instance_revision (instance_id, entry_revision_id, parameters, task_id)
         select i.id, i.entry_revision_id, i.parameters, $2 from instance i
         where i.id = $1 and not exists (
            select from (select * from instance_revision where instance_id = $1 order by id desc limit 1) newest
            where newest.entry_revision_id = i.entry_revision_id and newest.parameters = i.parameters)",
        id,
        task
    )
    .execute(db)
    .await?;
    Ok(())
}

/// What an instance ran, newest first: revision, its version, parameters.
///
/// # Errors
/// From Postgres.
pub async fn list_revisions(
    db: impl PgExecutor<'_>,
    id: Uuid,
) -> sqlx::Result<Vec<(Uuid, String, Map<String, Value>)>> {
    let rows = sqlx::query!(
        "select v.entry_revision_id, r.chart_version, v.parameters from instance_revision v
         join entry_revision r on r.id = v.entry_revision_id where v.instance_id = $1 order by v.id desc limit 50",
        id
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| (r.entry_revision_id, r.chart_version, object(r.parameters)))
        .collect())
}

/// Holds an instance at its version until the catalog moves on from what it offers now, or a person says otherwise.
///
/// # Errors
/// From Postgres.
pub async fn hold_version(db: &mut PgConnection, id: Uuid, reason: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set hold_kind = 'rollback', hold_reason = $2, hold_since = now(),
                hold_target = (select target_id from standing where instance_id = $1)
         where id = $1",
        id,
        reason
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Ends a hold.
///
/// # Errors
/// From Postgres.
pub async fn end_hold(db: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set hold_kind = null, hold_reason = null, hold_since = null, hold_target = null where id = $1",
        id
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Pins an instance to its version until then, or unpins it.
///
/// # Errors
/// From Postgres.
pub async fn set_pin(
    db: &mut PgConnection,
    id: Uuid,
    pin: Option<(Timestamp, &str, &str)>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set pin_until = $2, pin_reason = $3, pin_by = $4 where id = $1",
        id,
        pin.map(|p| Timestamptz::from(p.0)) as Option<Timestamptz>,
        pin.map(|p| p.1),
        pin.map(|p| p.2)
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Sets when the machine may upgrade it; always when none.
///
/// # Errors
/// From Postgres.
pub async fn set_window(db: &mut PgConnection, id: Uuid, window: Option<&str>) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set maintenance_window = $2 where id = $1",
        id,
        window
    )
    .execute(&mut *db)
    .await?;
    // What was parked for the old window is asked again.
    sqlx::query!(
        "update task set state = 'gated', run_after = now() where instance_id = $1 and state = 'parked' and slot_since is null
           and act = 'upgrade'",
        id
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Takes the revision that is there for ours.
///
/// # Errors
/// From Postgres.
pub async fn set_revision(db: &mut PgConnection, id: Uuid, revision: i32) -> sqlx::Result<()> {
    sqlx::query!(
        "update instance set release_revision = $2 where id = $1",
        id,
        revision
    )
    .execute(db)
    .await?;
    Ok(())
}
