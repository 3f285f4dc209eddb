//! An admin makes a team.

use super::Ops;
use crate::{
    authz::{Action, Actor, Scope, require},
    db,
    error::{Error, constraint},
    ids,
};
use serde::Deserialize;
use serde_json::json;
use svcforge_app::domain::{Problem, Role, Team, TeamId, name};

/// What is asked.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTeam {
    /// DNS label of at most 50 characters.
    pub slug: String,
    /// Name for people.
    pub title: String,
}

/// Does it; the actor becomes its owner.
///
/// # Errors
/// 403; 422 for a bad slug or title; 409 when the slug is taken.
pub async fn create_team(ops: &Ops, actor: &Actor, ask: CreateTeam) -> Result<Team, Error> {
    require(actor, Action::CreateTeam, Scope::Platform, "team")?;
    name::check_label(&ask.slug, name::MAX_SLUG).map_err(|why| Problem::field("/slug", why))?;
    if ask.title.trim().is_empty() || ask.title.len() > 100 {
        return Err(Problem::field("/title", "must have 1 to 100 characters").into());
    }
    let id = ids::new_id();
    let mut tx = ops.pool.begin().await?;
    db::team::insert(
        &mut tx,
        id,
        &ask.slug,
        ask.title.trim(),
        &name::team_namespace(&ask.slug),
    )
    .await
    .map_err(|error| match constraint(&error) {
        Some("team_slug_key" | "team_namespace_key") => {
            let mut taken = Problem::field("/slug", format!("{:?} is taken", ask.slug));
            taken.status = 409;
            taken.into()
        }
        _ => Error::from(error),
    })?;
    db::team::set_role(&mut tx, id, actor.user.0, Role::Owner).await?;
    db::audit::insert(
        &mut tx,
        actor,
        "team.create",
        ("team", &id.to_string()),
        &json!({"slug": ask.slug}),
    )
    .await?;
    tx.commit().await?;
    ops.changes.changed("team", id);
    Ok(Team {
        id: TeamId(id),
        slug: ask.slug,
        title: ask.title.trim().into(),
        role: Some(Role::Owner),
    })
}
