//! What tasks mean: one file a kind. They load what the instance is to be, let a provisioner treat, and write the outcome
//! in the transaction that ends the task.

mod deprovision;
mod install;
mod reveals;

pub use reveals::answer_reveals;

use crate::{
    db::{self, event::NewEvent, queue::Claimed},
    provision::{Fault, Job, Provisioner},
    queue::{Attempt, Ending, Handler},
};
use async_trait::async_trait;
use sqlx::{PgConnection, PgPool};
use std::sync::Arc;
use svcforge_app::domain::{Act, Facts, InstanceState, Ruling, TaskKind, may_act, task::KINDS};
use uuid::Uuid;

/// Attempts of a first install or a repair.
pub const PROVISION_ATTEMPTS: i32 = 4;
/// Attempts of an upgrade.
pub const UPGRADE_ATTEMPTS: i32 = 3;
/// Attempts of a rollback.
pub const ROLLBACK_ATTEMPTS: i32 = 3;
/// Attempts of a removal.
pub const DEPROVISION_ATTEMPTS: i32 = 6;

/// Handles every kind this version knows.
pub struct Tasks {
    /// Postgres.
    pub pool: PgPool,
    /// Who treats.
    pub provisioner: Arc<dyn Provisioner>,
}

#[async_trait]
impl Handler for Tasks {
    fn kinds(&self) -> Vec<String> {
        KINDS.map(|k| k.as_str().to_owned()).into()
    }

    async fn run(&self, attempt: &Attempt) -> Ending {
        let done = match TaskKind::parse(&attempt.task.kind) {
            Some(TaskKind::Provision) => {
                install::run(self, attempt, InstanceState::Provisioning).await
            }
            Some(TaskKind::Upgrade | TaskKind::Rollback) => {
                install::run(self, attempt, InstanceState::Upgrading).await
            }
            Some(TaskKind::Deprovision) => deprovision::run(self, attempt).await,
            None => return Ending::GiveBack,
        };
        match done {
            Ok(()) => Ending::Done,
            Err(fault) => {
                attempt.log("svcforge", &fault.to_string());
                fault.into_ending()
            }
        }
    }

    async fn conclude(
        &self,
        tx: &mut PgConnection,
        task: &Claimed,
        ending: &Ending,
        last: bool,
    ) -> sqlx::Result<()> {
        match TaskKind::parse(&task.kind) {
            Some(TaskKind::Provision) => {
                install::conclude(tx, task, ending, last, InstanceState::Provisioning).await
            }
            Some(TaskKind::Upgrade | TaskKind::Rollback) => {
                install::conclude(tx, task, ending, last, InstanceState::Upgrading).await
            }
            Some(TaskKind::Deprovision) => deprovision::conclude(tx, task, ending, last).await,
            None => Ok(()),
        }
    }
}

/// The job for an instance at that revision with those parameters.
async fn load_job(
    pool: &PgPool,
    instance: Uuid,
    at: Option<(Uuid, serde_json::Map<String, serde_json::Value>)>,
) -> Result<Job, Fault> {
    let work = db::instance::load_work(pool, instance).await?;
    let (revision_id, parameters) =
        at.unwrap_or_else(|| (work.entry_revision_id, work.parameters.clone()));
    let (revision, chart) = db::catalog::load(pool, revision_id).await?;
    Ok(Job {
        instance_id: instance,
        work,
        revision_id,
        entry: revision.entry,
        chart,
        parameters,
    })
}

async fn event(
    tx: &mut PgConnection,
    task: &Claimed,
    kind: &str,
    message: &str,
) -> sqlx::Result<()> {
    let event = NewEvent {
        instance_id: task.instance_id,
        kind,
        actor: "worker",
        message,
        task_id: Some(task.id),
    };
    db::event::insert(tx, event).await
}

/// What both kinds say when an attempt ends without success and another follows.
async fn unfinished(tx: &mut PgConnection, task: &Claimed, ending: &Ending) -> sqlx::Result<()> {
    match ending {
        Ending::Failed(error) | Ending::Hopeless(error) => {
            db::instance::set_error(tx, task.instance_id, error).await?;
            let message = format!(
                "Attempt {} of {} failed: {error}",
                task.attempt, task.max_attempts
            );
            event(tx, task, "task.attempt_failed", &message).await
        }
        // Said once, not at every look.
        Ending::Waiting { what, error } if task.error.as_deref() != Some(error) => {
            event(
                tx,
                task,
                "task.waiting",
                &format!("Waiting for {what}: {error}"),
            )
            .await
        }
        _ => Ok(()),
    }
}

/// A repair or an expiry that is paused looks again after this long.
const LOOK_AGAIN: jiff::SignedDuration = jiff::SignedDuration::from_secs(30);

/// What svcforge does by itself waits while it is paused: asked again when it is claimed.
async fn may_go_on(tx: &mut PgConnection, task: &Claimed) -> Result<(), Fault> {
    let act = match task.act.as_deref().and_then(Act::parse) {
        Some(act @ (Act::Repair | Act::Expiry)) => act,
        _ => return Ok(()),
    };
    let Some(row) = db::standing::of(&mut *tx, &[task.instance_id]).await?.pop() else {
        return Ok(());
    };
    let now = row.now.to_jiff();
    let facts = Facts {
        paused: row.paused,
        ..Facts::default()
    };
    match may_act(act, &facts) {
        Ruling::Wait { why, .. } => Err(Fault::NotYet {
            why,
            until: Some(now + LOOK_AGAIN),
        }),
        _ => Ok(()),
    }
}
