//! Use cases: one change, whole or not at all. Here transactions of people's changes begin and end. Each asks
//! [`crate::authz`], checks, changes, and writes event and audit in the same transaction.

mod adopt_orphan;
mod change_instance;
mod create_team;
mod definitions;
mod delete_instance;
mod drift;
mod pauses;
mod request_instance;
mod retry_instance;
mod reveal;
mod rollback;
mod rollouts;
mod settings;

pub use adopt_orphan::{AdoptAsk, adopt_orphan};
pub use change_instance::{Change, PinAsk, change_instance, extend_instance, upgrade_instance};
pub use create_team::{CreateTeam, create_team};
pub use definitions::{SHOWN as MOST_DEFINITIONS, definitions, definitions_read, workflows};
pub use delete_instance::{Precondition, delete_instance};
pub use drift::{DriftChoice, choose_drift, drift_view, ignore_orphan, release_brake};
pub use pauses::{PauseAsk, WidePause, pause_instance, pause_wide};
pub use request_instance::{RequestInstance, request_instance};
pub use retry_instance::{cancel_task, retry_instance, retry_task};
pub use reveal::reveal;
pub use rollback::{RollbackAsk, rollback};
pub use rollouts::{halt, resume, rollouts};
pub use settings::{Settings, settings};

use crate::{
    authz::{Action, Actor, Scope, require},
    changes::Changes,
    db,
    error::Error,
};
use sqlx::PgPool;
use svcforge_app::domain::{Instance, Problem, TeamId};
use uuid::Uuid;

/// What every operation needs.
#[derive(Clone, Debug)]
pub struct Ops {
    /// Postgres.
    pub pool: PgPool,
    /// Tells others.
    pub changes: Changes,
    /// Where ServiceDefinitions live.
    pub apps_namespace: String,
    /// Whose instances are upgraded first.
    pub own_team: String,
}

impl Ops {
    /// Refuses what the actor may not do with this instance: 404 where they may not look.
    async fn require_on(&self, actor: &Actor, action: Action, id: Uuid) -> Result<(), Error> {
        let team = db::instance::find_team(&self.pool, id)
            .await?
            .ok_or_else(|| Problem::not_found("instance"))?;
        Ok(require(
            actor,
            action,
            Scope::Team(TeamId(team)),
            "instance",
        )?)
    }

    /// The instance as shown, after a change; told to everybody who looks at it.
    async fn shown(&self, id: Uuid) -> Result<Instance, Error> {
        self.changes.changed("instance", id);
        self.changes.work();
        find_instance(&self.pool, id).await
    }
}

/// An instance by its id, in any state. The caller has asked the policy.
///
/// # Errors
/// 404 when there is none.
pub async fn find_instance(pool: &PgPool, id: Uuid) -> Result<Instance, Error> {
    let filter = db::instance::Filter {
        id: Some(id),
        ..Default::default()
    };
    let found = db::instance::list(pool, &filter, 1).await?.pop();
    Ok(found.ok_or_else(|| Problem::not_found("instance"))?)
}
