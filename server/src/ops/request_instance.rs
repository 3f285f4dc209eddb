//! A team asks for an instance: row, event, audit and provision task, in one transaction.

use super::Ops;
use crate::{
    authz::{Action, Actor, Scope, require},
    db::{
        self,
        event::NewEvent,
        instance::NewInstance,
        queue::{NewTask, Priority},
    },
    error::{Error, constraint},
    ids,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use svcforge_app::domain::{
    Act, EntryKind, Facts, FieldError, Instance, Problem, Ruling, TaskKind, TeamId, Window,
    may_act,
    name::{check_instance_name, release_name},
    parameters,
};

/// Shortest life that may be asked, seconds: shorter than a tick it would be removed while it is installed.
const MIN_TTL: i64 = 60;
/// Longest life where the entry sets none, seconds: ten years.
const MAX_TTL: i64 = 10 * 366 * 86_400;

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestInstance {
    /// Slug of the team.
    pub team: String,
    /// Catalog entry.
    #[serde(rename = "type")]
    pub service_type: String,
    /// DNS label of at most 40 characters, unique in the team.
    pub name: String,
    /// By the entry's schema.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub parameters: Map<String, Value>,
    /// Seconds to live; the entry's default when not said.
    #[serde(default)]
    pub ttl_seconds: Option<i64>,
    /// When the machine may upgrade it, e.g. `Sat,Sun 02:00-05:00 Europe/Berlin`; always when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance_window: Option<String>,
}

/// Does it. The boolean is false when an earlier request with the same key is answered again.
///
/// # Errors
/// 422 with every wrong field; 409 when the name is taken or the key was used for something else; 404 for a team one may not see.
pub async fn request_instance(
    ops: &Ops,
    actor: &Actor,
    ask: RequestInstance,
    key: Option<&str>,
) -> Result<(Instance, bool), Error> {
    let no_team = || Problem::field("/team", format!("{:?} is not a team of yours", ask.team));
    let team = db::team::find(&ops.pool, &ask.team)
        .await?
        .ok_or_else(no_team)?;
    match require(
        actor,
        Action::RequestInstance,
        Scope::Team(TeamId(team.id)),
        "team",
    ) {
        Err(problem) if problem.status == 404 => return Err(no_team().into()),
        other => other?,
    }
    let entry = db::catalog::find_current(&ops.pool, &ask.service_type).await?;
    let Some(entry) = entry else {
        return Err(Problem::field(
            "/type",
            format!("{:?} is not in the catalog", ask.service_type),
        )
        .into());
    };
    let (entry, warning) = proven(ops, entry).await?;
    let parameters = validate(&ask, &entry.entry)?;
    let ttl = ask.ttl_seconds.or(entry.entry.ttl.default.map(|s| s.0));

    let id = ids::new_id();
    let release = release_name(&ask.name, id);
    let namespace = match entry.entry.kind {
        EntryKind::Helm => team.namespace.as_str(),
        EntryKind::ServiceDefinition => ops.apps_namespace.as_str(),
    };
    let mut tx = ops.pool.begin().await?;
    if let Some(key) = key {
        let digest =
            Sha256::digest(serde_json::to_vec(&ask).map_err(anyhow::Error::from)?).to_vec();
        if let Some(earlier) =
            db::idempotency::take(&mut tx, actor.user.0, key, &digest, id).await?
        {
            drop(tx);
            if earlier.digest != digest {
                return Err(Problem::conflict(
                    "This Idempotency-Key was used for another request. Use a new key.",
                )
                .into());
            }
            return Ok((
                super::find_instance(&ops.pool, earlier.instance_id).await?,
                false,
            ));
        }
    }
    let new = NewInstance {
        id,
        team_id: team.id,
        service_type: &ask.service_type,
        kind: entry.entry.kind,
        name: &ask.name,
        entry_revision_id: entry.id,
        release_name: &release,
        release_namespace: namespace,
        parameters: &parameters,
        ttl_seconds: ttl,
        created_by: &actor.name,
        maintenance_window: ask.maintenance_window.as_deref().map(str::trim),
    };
    db::instance::insert(&mut tx, &new)
        .await
        .map_err(|error| match constraint(&error) {
            Some("instance_name") => taken(&ask.name).into(),
            _ => Error::from(error),
        })?;
    let task = NewTask {
        kind: TaskKind::Provision.as_str(),
        instance_id: id,
        team_id: team.id,
        priority: Priority::Person,
        run_after: None,
        max_attempts: crate::tasks::PROVISION_ATTEMPTS,
        payload: json!({}),
        reason: "requested",
        requested_by: &actor.name,
        act: Act::Install,
        rollout_type: None,
    };
    let task = db::queue::enqueue(&mut tx, task).await?;
    let event = NewEvent {
        instance_id: id,
        kind: "instance.requested",
        actor: &actor.name,
        message: &format!(
            "{} asked for {} {}",
            actor.name, entry.entry.title, entry.entry.chart_version
        ),
        task_id: Some(task.id),
    };
    db::event::insert(&mut tx, event).await?;
    if let Some(warning) = &warning {
        let event = NewEvent {
            instance_id: id,
            kind: "instance.warning",
            actor: "svcforge",
            message: warning,
            task_id: Some(task.id),
        };
        db::event::insert(&mut tx, event).await?;
    }
    let detail = json!({"team": ask.team, "type": ask.service_type, "name": ask.name, "entry_revision": entry.id});
    db::audit::insert(
        &mut tx,
        actor,
        "instance.request",
        ("instance", &id.to_string()),
        &detail,
    )
    .await?;
    tx.commit().await?;
    Ok((ops.shown(id).await?, true))
}

/// While its rollout is halted a new instance gets the newest revision that serves somewhere; if none does, the halted one, with a
/// warning on its timeline.
async fn proven(
    ops: &Ops,
    current: db::catalog::Revision,
) -> Result<(db::catalog::Revision, Option<String>), Error> {
    let Some(halt) = db::rollout::find_halt(&ops.pool, &current.entry.service_type).await? else {
        return Ok((current, None));
    };
    let found = db::rollout::find_proven(&ops.pool, &current.entry.service_type).await?;
    let facts = Facts {
        halted: Some(halt),
        proven: found.is_some(),
        ..Facts::default()
    };
    match (may_act(Act::Install, &facts), found) {
        (Ruling::Go, Some(revision)) if revision != current.id => {
            let (older, _) = db::catalog::load(&ops.pool, revision).await?;
            let version = older.entry.chart_version.clone();
            Ok((
                older,
                Some(format!(
                    "It got {version}, which serves elsewhere: {} is {}",
                    current.entry.chart_version,
                    facts.halted.unwrap_or_default()
                )),
            ))
        }
        (Ruling::Warn(why), _) => Ok((
            current,
            Some(format!(
                "Nothing of its type serves yet, and its rollout is {why}"
            )),
        )),
        _ => Ok((current, None)),
    }
}

fn taken(name: &str) -> Problem {
    let mut problem = Problem::field(
        "/name",
        format!("{name:?} is taken by another service of the team; choose another name"),
    );
    problem.status = 409;
    problem
}

fn validate(
    ask: &RequestInstance,
    entry: &crate::catalog::Entry,
) -> Result<Map<String, Value>, Problem> {
    let mut errors = vec![];
    if let Err(why) = check_instance_name(&ask.name) {
        errors.push(FieldError {
            pointer: "/name".into(),
            detail: why,
        });
    }
    if let Some(ttl) = ask.ttl_seconds {
        let max = entry.ttl.max.map_or(MAX_TTL, |s| s.0);
        if !(MIN_TTL..=max).contains(&ttl) {
            errors.push(FieldError {
                pointer: "/ttl_seconds".into(),
                detail: format!("must be between {MIN_TTL} and {max} seconds, or left out"),
            });
        }
    }
    if let Some(Err(why)) = ask.maintenance_window.as_deref().map(Window::parse) {
        errors.push(FieldError {
            pointer: "/maintenance_window".into(),
            detail: why,
        });
    }
    let parameters = parameters::check(&entry.parameters, &ask.parameters).unwrap_or_else(|more| {
        errors.extend(more);
        Map::new()
    });
    if errors.is_empty() {
        Ok(parameters)
    } else {
        Err(Problem::invalid(errors))
    }
}
