//! Instances as API and portal show them, a page in one query.

use super::{object, state};
use crate::db::{Timestamptz, standing};
use jiff::Timestamp;
use serde_json::Value;
use sqlx::PgPool;
use svcforge_app::domain::{
    DriftVerdict, EntryKind, Instance, InstanceId, InstanceState, Pause, Pin, Readiness, Release,
    Verdict, Window, standing::explain,
};
use uuid::Uuid;

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
    let mut standings: std::collections::HashMap<Uuid, standing::Row> = standing::of(pool, &ids)
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

fn view(r: Row, standing: Option<standing::Row>) -> sqlx::Result<Instance> {
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
