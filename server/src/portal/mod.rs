//! The pages' door: asks the policy, asks `db` and `ops`, maps errors. Knows who asks.

use crate::{
    authz::{Action, Actor, Scope, allows, require},
    catalog::{Data, OnDelete},
    db,
    error::Error,
    http::Info,
    ops::{self, Ops},
};
use async_trait::async_trait;
use std::sync::Arc;
use svcforge_app::{
    domain::{CatalogEntry, CatalogView, InstancePage, Me, Problem, Team, TeamId},
    pages::{
        InstanceQuery, ServiceDetail, SiteInfo, draw,
        drift::{Found, FoundProps},
        rollouts::{Rollouts, RolloutsProps},
        workflows::{Workflows, WorkflowsProps},
    },
    port::Portal,
};
use uuid::Uuid;

/// The door of one request.
#[derive(Clone, Debug)]
pub struct Door {
    /// Who asks.
    pub actor: Actor,
    /// Use cases.
    pub ops: Ops,
    /// What the header says.
    pub info: Arc<Info>,
}

/// Instances a page shows.
const PAGE: i64 = 50;
/// Log lines a page shows at first.
const LINES: i64 = 1000;

fn shown(error: impl Into<Error>) -> Problem {
    let mut problem = error.into().into_problem();
    problem.request_id = crate::http::request_id::current();
    problem
}

fn parse(id: &str, what: &str) -> Result<Uuid, Problem> {
    id.parse().map_err(|_| Problem::not_found(what))
}

impl Door {
    /// What is stopped everywhere.
    async fn banners(&self) -> Result<Vec<String>, Error> {
        let pool = &self.ops.pool;
        let mut banners = vec![];
        if let Some(h) = db::rollout::find_halt_of_all(pool).await? {
            banners.push(format!("All rollouts are halted by {}: {}", h.by, h.reason));
        }
        for p in db::pause::list(pool, self.actor.visible_teams().as_deref(), None).await? {
            if p.scope == "all" {
                banners.push(format!("Everything is paused by {}: {}", p.by, p.reason));
            }
        }
        let brake = db::drift::find_brake(pool).await?;
        if let (true, Some(reason)) = (brake.open, brake.reason) {
            banners.push(format!("The brake on repairs is on: {reason}"));
        }
        Ok(banners)
    }
}

#[async_trait]
impl Portal for Door {
    async fn site(&self) -> Result<SiteInfo, Problem> {
        let banners = self.banners().await.map_err(shown)?;
        Ok(SiteInfo {
            banners,
            me: self.me().await?,
            cluster_note: self.info.cluster_note.clone(),
        })
    }

    async fn me(&self) -> Result<Me, Problem> {
        let a = &self.actor;
        Ok(Me {
            id: a.user,
            name: a.name.clone(),
            admin: a.admin,
            teams: a.teams.clone(),
        })
    }

    async fn teams(&self) -> Result<Vec<Team>, Problem> {
        let teams = crate::http::v1::visible_teams(&self.ops, &self.actor)
            .await
            .map_err(shown)?;
        Ok(teams
            .into_iter()
            .filter(|t| allows(&self.actor, Action::RequestInstance, Scope::Team(t.id)))
            .collect())
    }

    async fn catalog(&self) -> Result<CatalogView, Problem> {
        crate::http::v1::catalog_view(&self.ops, &self.actor)
            .await
            .map_err(shown)
    }

    async fn entry(&self, service_type: String) -> Result<CatalogEntry, Problem> {
        require(
            &self.actor,
            Action::ViewCatalog,
            Scope::Platform,
            "catalog entry",
        )?;
        let found = db::catalog::find_current(&self.ops.pool, &service_type)
            .await
            .map_err(shown)?;
        Ok(found
            .ok_or_else(|| Problem::not_found("catalog entry"))?
            .entry
            .view())
    }

    async fn instances(&self, query: InstanceQuery) -> Result<InstancePage, Problem> {
        crate::http::v1::instance_page(&self.ops, &self.actor, &query, PAGE)
            .await
            .map_err(shown)
    }

    async fn drawn(&self, name: String) -> Result<String, Problem> {
        let may = allows(&self.actor, Action::ManageRollouts, Scope::Platform);
        match name.as_str() {
            "rollouts" => {
                let found = ops::rollouts(&self.ops, &self.actor, None)
                    .await
                    .map_err(shown)?;
                Ok(draw(move || Rollouts(RolloutsProps { found, may })))
            }
            "drift" => {
                let found = ops::drift_view(&self.ops, &self.actor)
                    .await
                    .map_err(shown)?;
                Ok(draw(move || Found(FoundProps { found, may })))
            }
            "workflows" => {
                let workflows = ops::workflows(&self.ops, &self.actor)
                    .await
                    .map_err(shown)?;
                let definitions = ops::definitions(&self.ops, &self.actor)
                    .await
                    .map_err(shown)?;
                let read = ops::definitions_read(&self.ops, &self.actor)
                    .await
                    .map_err(shown)?;
                let props = WorkflowsProps {
                    workflows,
                    read,
                    most: usize::try_from(ops::MOST_DEFINITIONS).unwrap_or(usize::MAX),
                    definitions,
                };
                Ok(draw(move || Workflows(props)))
            }
            other => {
                let id = other
                    .strip_prefix("change/")
                    .ok_or_else(|| Problem::not_found("page"))?;
                let id = parse(id, "service")?;
                let of = ops::settings(&self.ops, &self.actor, id)
                    .await
                    .map_err(shown)?;
                Ok(crate::http::change_form::form(id, of))
            }
        }
    }

    async fn detail(&self, id: String) -> Result<ServiceDetail, Problem> {
        let id = parse(&id, "service")?;
        let pool = &self.ops.pool;
        let team = db::instance::find_team(pool, id)
            .await
            .map_err(shown)?
            .ok_or_else(|| Problem::not_found("service"))?;
        let scope = Scope::Team(TeamId(team));
        require(&self.actor, Action::ViewInstance, scope, "service")?;
        let instance = ops::find_instance(pool, id).await.map_err(shown)?;
        let work = db::instance::load_work(pool, id).await.map_err(shown)?;
        let (revision, _) = db::catalog::load(pool, work.entry_revision_id)
            .await
            .map_err(shown)?;
        let filter = db::task::Filter {
            instance: Some(id),
            ..Default::default()
        };
        let tasks = db::task::list(pool, &filter, 10).await.map_err(shown)?;
        let log = match tasks.first() {
            Some(newest) => db::task::log_tail(pool, newest.id.0, LINES)
                .await
                .map_err(shown)?,
            None => vec![],
        };
        let may = |action| allows(&self.actor, action, scope);
        Ok(ServiceDetail {
            title: revision.entry.title.clone(),
            tasks,
            log,
            events: db::event::list(pool, id, None, PAGE).await.map_err(shown)?,
            connection: ops::reveal(&self.ops, &self.actor, id, false)
                .await
                .map_err(shown)?,
            may_change: may(Action::ChangeInstance),
            may_delete: may(Action::DeleteInstance),
            may_reveal: may(Action::RevealConnection),
            loses: loses(revision.entry.data, revision.entry.on_delete),
            instance,
        })
    }
}

fn loses(data: Data, on_delete: OnDelete) -> String {
    match (data, on_delete) {
        (Data::None, _) => "No data is lost with it.".into(),
        (_, OnDelete::Wipe) => "All of its data is lost. There is no way back.".into(),
        (_, OnDelete::KeepDays(days)) => format!("Its volumes are kept for {days} days."),
    }
}
