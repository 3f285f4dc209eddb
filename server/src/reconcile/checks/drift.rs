//! Releases that are gone are provisioned again, those that somebody changed are held, those that nobody knows are told. The cluster
//! is listed first, then the database is read: what was installed in between is never missing.

use super::super::{CheckError, Context};
use super::{
    BATCH, Finding, Repairs,
    drift_plan::{self, Eyes, MOST_REPAIRS},
    plan_repairs, unknown_releases,
};
use crate::{
    cluster::{Listing, Releases},
    db::{
        self,
        drift::{Detail, Known, Verdict},
        event::NewEvent,
        queue::{NewTask, Priority},
    },
    notify::Note,
    tasks::PROVISION_ATTEMPTS,
};
use futures::{FutureExt, StreamExt};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use svcforge_app::domain::{Act, EntryKind, TaskKind};
use tracing::Instrument;
use uuid::Uuid;

/// Longest time a listing may take.
const LIST_WITHIN: Duration = Duration::from_secs(25);
/// Releases looked up at once.
const LOOKUPS: usize = 16;

/// Compares and enqueues what is missing.
///
/// # Errors
/// When the cluster cannot be listed, from Postgres, or when another leads.
pub async fn run(cx: &Context) -> Result<(), CheckError> {
    let Some(releases) = cx.releases.clone() else {
        return Ok(());
    };
    let listing = match list(cx, &releases).await {
        Ok(listing) => listing,
        Err(error) if !cx.whole => return Err(error),
        Err(error) => {
            let mut tx = cx.leading.begin(&cx.pool).await?;
            db::drift::set_sweep(&mut tx, Some(&error.to_string())).await?;
            tx.commit().await?;
            return Err(error);
        }
    };
    let known = db::drift::list_known(&cx.pool).await?;
    let now = db::now(&cx.pool).await?.as_second();
    let findings = confirm(cx, &releases, judge_all(cx, &known, &listing, now), now).await;
    let gone = keep(cx, &known, &findings).await?;
    let unsure = findings
        .iter()
        .any(|(_, f)| matches!(f, Finding::Unknown(_)));
    repair(cx, &gone, unsure).await?;
    // Between ticks only what is gone or changed is looked for: the tick tells the rest.
    if cx.whole {
        orphans(cx, &known, &listing).await?;
        super::leftovers::run(cx, &releases).await?;
    }
    Ok(())
}

async fn list(cx: &Context, releases: &Arc<dyn Releases>) -> Result<Listing, CheckError> {
    let namespaces = db::drift::list_namespaces(&cx.pool).await?;
    let listing = releases
        .list(&namespaces)
        .instrument(tracing::info_span!("helm.list"));
    // The other checks wait behind this one: an API that answers nothing must not hold them up for long.
    match tokio::time::timeout(LIST_WITHIN, listing).await {
        Ok(listed) => listed.map_err(|fault| CheckError::Cluster(fault.to_string())),
        Err(_) => Err(CheckError::Cluster(format!(
            "the releases could not be listed within {} s",
            LIST_WITHIN.as_secs()
        ))),
    }
}

fn eyes(cx: &Context, now: i64) -> Eyes<'_> {
    Eyes {
        installation: &cx.installation,
        now,
        patience: i64::try_from(cx.rules.patience.as_secs()).unwrap_or(i64::MAX),
    }
}

fn judge_all<'a>(
    cx: &Context,
    known: &'a [Known],
    listing: &Listing,
    now: i64,
) -> Vec<(&'a Known, Finding)> {
    known
        .iter()
        .filter(|k| k.ready)
        .filter_map(|k| match drift_plan::judge(k, listing, eyes(cx, now)) {
            // The many that are as they should be cost nothing further.
            Finding::Present if k.verdict.is_none() => None,
            finding => Some((k, finding)),
        })
        .collect()
}

/// A release that a listing lacks is looked up alone before that is believed, even when it was the only one.
async fn confirm<'a>(
    cx: &Context,
    releases: &Arc<dyn Releases>,
    mut findings: Vec<(&'a Known, Finding)>,
    now: i64,
) -> Vec<(&'a Known, Finding)> {
    let missing: Vec<usize> = (0..findings.len())
        .filter(|i| matches!(findings[*i].1, Finding::Missing(_)))
        .collect();
    let lookups: Vec<_> = missing
        .iter()
        .map(|i| look_up(releases.clone(), findings[*i].0.clone(), eyes(cx, now)).boxed())
        .collect();
    let settled: Vec<Finding> = futures::stream::iter(lookups)
        .buffered(LOOKUPS)
        .collect()
        .await;
    for (i, finding) in missing.into_iter().zip(settled) {
        findings[i].1 = finding;
    }
    findings
}

async fn look_up(releases: Arc<dyn Releases>, known: Known, eyes: Eyes<'_>) -> Finding {
    let alone = match releases
        .find(known.kind, &known.namespace, &known.release)
        .await
    {
        Ok(seen) => drift_plan::judge_seen(&known, seen.as_ref(), eyes),
        Err(fault) => Finding::Unknown(format!(
            "it is not in the listing, and could not be looked up: {fault}"
        )),
    };
    match alone {
        // Definitions are listed by svcforge's label: one that a person made in its place is not among them.
        Finding::Changed { revision: None, .. } if known.kind == EntryKind::ServiceDefinition => {
            alone
        }
        Finding::Present | Finding::Changed { .. } => {
            Finding::Unknown("it is not in the listing, but a read of its own finds it".into())
        }
        other => other,
    }
}

/// Keeps verdicts, holds what was changed; returns those that are gone.
async fn keep(
    cx: &Context,
    known: &[Known],
    findings: &[(&Known, Finding)],
) -> Result<Vec<Uuid>, CheckError> {
    let (mut verdicts, mut present, mut gone, mut changed) = (vec![], vec![], vec![], vec![]);
    for (k, finding) in findings {
        let (verdict, detail, revision) = match finding {
            Finding::Present => {
                present.push(k.id);
                continue;
            }
            Finding::Missing(why) => {
                gone.push(k.id);
                ("gone", why, None)
            }
            Finding::Changed { revision, detail } => {
                changed.push((k.id, detail.clone()));
                ("changed", detail, *revision)
            }
            Finding::Unknown(why) => ("unknown", why, None),
        };
        verdicts.push(Verdict {
            id: k.id,
            verdict,
            detail: detail.clone(),
            revision,
        });
    }
    // Not judged any more: a person removed or changed it meanwhile.
    let stale = known.iter().any(|k| !k.ready && k.verdict.is_some());
    let ids: Vec<Uuid> = changed.iter().map(|c| c.0).collect();
    let details: BTreeMap<Uuid, Detail> = db::drift::details(&cx.pool, &ids)
        .await?
        .into_iter()
        .map(|d| (d.id, d))
        .collect();
    changed.retain(|(id, _)| details.get(id).is_some_and(|d| !d.busy && !d.held));
    verdicts.retain(|v| v.verdict != "changed" || details.get(&v.id).is_some_and(|d| !d.busy));
    let mut tx = cx.leading.begin(&cx.pool).await?;
    if cx.whole {
        db::drift::set_sweep(&mut tx, None).await?;
    }
    let mut differ = vec![];
    if !verdicts.is_empty() || !present.is_empty() || stale {
        differ = db::drift::keep_verdicts(&mut tx, &verdicts, &present).await?;
    }
    let held = if changed.is_empty() {
        vec![]
    } else {
        let held = db::drift::hold_changed(&mut tx, &changed).await?;
        let messages: BTreeMap<Uuid, String> = changed
            .iter()
            .map(|(id, detail)| (*id, format!("Changed from outside: {detail}. Held until a person keeps, accepts or puts it back")))
            .collect();
        let events: Vec<NewEvent<'_>> = held
            .iter()
            .map(|id| NewEvent {
                instance_id: *id,
                kind: "drift.changed",
                actor: "reconciler",
                message: &messages[id],
                task_id: None,
            })
            .collect();
        db::event::insert_many(&mut tx, &events).await?;
        held
    };
    tx.commit().await?;
    let mut notes = vec![];
    for id in &held {
        let Some(d) = details.get(id) else { continue };
        tracing::warn!(event = "drift.changed", instance_id = %id, team = %d.team, release = %d.release, namespace = %d.namespace);
        notes.push(Note {
            kind: "drift.changed",
            instance_id: Some(*id),
            team: Some(d.team.clone()),
            data: json!({"release": d.release, "namespace": d.namespace}),
        });
    }
    crate::notify::tell(&*cx.notifier, &notes).await;
    for id in &differ {
        cx.changes.changed("instance", id);
    }
    if !differ.is_empty() {
        cx.changes.changed("drift", "verdicts");
    }
    Ok(gone)
}

async fn repair(cx: &Context, gone: &[Uuid], unsure: bool) -> Result<(), CheckError> {
    let mut tx = cx.leading.begin(&cx.pool).await?;
    let budget = db::drift::budget(&mut tx).await?;
    if gone.is_empty() {
        // Where not everything could be seen, what an admin was asked still stands.
        if !unsure && (!budget.asked.is_empty() || !budget.released.is_empty()) {
            db::drift::clear_brake(&mut tx).await?;
        }
        tx.commit().await?;
        return Ok(());
    }
    let details = db::drift::details(&mut *tx, gone).await?;
    let plan = plan_repairs(&details, &budget);
    brake(cx, &mut tx, &plan, &budget, &details).await?;
    tx.commit().await?;
    let chosen: Vec<&Detail> = details
        .iter()
        .filter(|d| plan.now.contains(&d.id))
        .collect();
    for batch in chosen.chunks(BATCH) {
        provision(cx, batch, &budget.released).await?;
    }
    Ok(())
}

/// Puts the brake on, or takes it off; says so every tick.
async fn brake(
    cx: &Context,
    tx: &mut sqlx::PgConnection,
    plan: &Repairs,
    budget: &db::drift::Budget,
    details: &[Detail],
) -> Result<(), CheckError> {
    for d in details.iter().filter(|d| plan.not_sticking.contains(&d.id)) {
        tracing::error!(
            event = "drift.not_sticking",
            instance_id = %d.id,
            team = %d.team,
            release = %d.release,
            namespace = %d.namespace,
            error = %format!("provisioned again {MOST_REPAIRS} times within a day, and gone again: a person must look")
        );
    }
    if !plan.not_sticking.is_empty() {
        let why = "its release was provisioned again five times within a day, and is gone again: retry it once the cause is found";
        db::drift::hold_not_sticking(tx, &plan.not_sticking, why).await?;
    }
    if plan.braked.is_empty() {
        if plan.paced.is_empty() && (!budget.asked.is_empty() || !budget.released.is_empty()) {
            db::drift::clear_brake(tx).await?;
        }
        return Ok(());
    }
    let reason = format!(
        "{} more releases are gone than may be provisioned again within an hour ({} of {} ready): is the cluster telling the truth?",
        plan.braked.len(),
        (budget.ready / 5).max(3),
        budget.ready
    );
    tracing::error!(event = "drift.brake", waiting = plan.braked.len(), error = %reason);
    // A list that an admin has released is worked off first.
    if plan.paced.is_empty() {
        db::drift::set_brake(tx, &plan.braked, &reason).await?;
        if budget.asked != plan.braked {
            cx.changes.changed("drift", "brake");
            let note = Note {
                kind: "drift.brake",
                instance_id: None,
                team: None,
                data: json!({"waiting": plan.braked.len(), "reason": reason}),
            };
            crate::notify::tell(&*cx.notifier, &[note]).await;
        }
    }
    Ok(())
}

async fn provision(cx: &Context, batch: &[&Detail], released: &[Uuid]) -> Result<(), CheckError> {
    let mut tx = cx.leading.begin(&cx.pool).await?;
    let ids: Vec<Uuid> = batch.iter().map(|d| d.id).collect();
    db::queue::lock_lanes(&mut tx, &ids).await?;
    let moved = db::drift::begin_repairs(&mut tx, &ids).await?;
    let chosen: Vec<&Detail> = batch
        .iter()
        .copied()
        .filter(|d| moved.contains(&d.id))
        .collect();
    let reasons: Vec<String> = chosen
        .iter()
        .map(|d| {
            format!(
                "drift: release {} is gone from namespace {}",
                d.release, d.namespace
            )
        })
        .collect();
    let tasks: Vec<NewTask<'_>> = chosen
        .iter()
        .zip(&reasons)
        .map(|(d, reason)| NewTask {
            kind: TaskKind::Provision.as_str(),
            instance_id: d.id,
            team_id: d.team_id,
            priority: Priority::Repair,
            run_after: None,
            max_attempts: PROVISION_ATTEMPTS,
            payload: json!({}),
            reason,
            requested_by: "reconciler",
            act: Act::Repair,
            rollout_type: None,
        })
        .collect();
    let created: BTreeMap<Uuid, Uuid> = db::queue::enqueue_many(&mut tx, &tasks)
        .await?
        .into_iter()
        .collect();
    let messages: Vec<String> = reasons
        .iter()
        .map(|r| format!("Provisioned again, {r}"))
        .collect();
    let events: Vec<NewEvent<'_>> = chosen
        .iter()
        .zip(&messages)
        .map(|(d, message)| NewEvent {
            instance_id: d.id,
            kind: "state.provisioning",
            actor: "reconciler",
            message,
            task_id: created.get(&d.id).copied(),
        })
        .collect();
    db::event::insert_many(&mut tx, &events).await?;
    db::drift::count_repairs(&mut tx, &moved, released).await?;
    tx.commit().await?;
    let mut notes = vec![];
    for d in chosen {
        let Some(task_id) = created.get(&d.id) else {
            continue;
        };
        tracing::warn!(
            event = "drift.release_missing",
            instance_id = %d.id,
            team = %d.team,
            release = %d.release,
            namespace = %d.namespace,
            task_id = %task_id
        );
        notes.push(Note {
            kind: "drift.release_missing",
            instance_id: Some(d.id),
            team: Some(d.team.clone()),
            data: json!({"release": d.release, "namespace": d.namespace, "task_id": task_id}),
        });
        cx.changes.changed("instance", d.id);
    }
    crate::notify::tell(&*cx.notifier, &notes).await;
    cx.changes.work();
    Ok(())
}

async fn orphans(cx: &Context, known: &[Known], listing: &Listing) -> Result<(), CheckError> {
    let found = unknown_releases(known, listing, &cx.installation);
    let whole = listing.unknown.is_empty()
        && listing.unknown_definitions.is_none()
        && listing.unreadable.is_empty();
    let mut tx = cx.leading.begin(&cx.pool).await?;
    let ignored = db::drift::keep_orphans(&mut tx, &found, whole).await?;
    tx.commit().await?;
    for o in &found {
        if o.kind != "orphan" && !cx.rules.all_orphans {
            continue;
        }
        const ACTION: &str = "none (v1 never deletes)";
        if ignored.contains(&(o.release.clone(), o.namespace.clone())) {
            tracing::info!(event = "drift.orphan_release", release = %o.release, namespace = %o.namespace, action = ACTION);
        } else {
            tracing::error!(
                event = "drift.orphan_release",
                release = %o.release,
                namespace = %o.namespace,
                action = ACTION,
                error = "no instance knows it: a person adopts, ignores or removes it"
            );
        }
    }
    Ok(())
}
