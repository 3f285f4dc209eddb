//! Who may. One pure function, asked by API, server functions, streams and views alike.

use svcforge_app::domain::{Problem, Role, Team, TeamId, UserId};
use uuid::Uuid;

/// How somebody proved who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The portal's session.
    Session,
    /// An API token.
    Token,
    /// The machine's own hands: `up` and the command line.
    Local,
}

impl Via {
    /// The word in the audit.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Token => "token",
            Self::Local => "local",
        }
    }
}

/// Who acts.
#[derive(Clone, Debug)]
pub struct Actor {
    /// User id.
    pub user: UserId,
    /// Name for events and audit.
    pub name: String,
    /// Platform admin.
    pub admin: bool,
    /// Their teams.
    pub teams: Vec<Team>,
    /// How they proved it.
    pub via: Via,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the catalog.
    ViewCatalog,
    /// Read a team's instances, tasks, logs and events.
    ViewInstance,
    /// Ask for an instance.
    RequestInstance,
    /// Change one: parameters, retry, upgrade, cancel.
    ChangeInstance,
    /// Remove one.
    DeleteInstance,
    /// See its secrets.
    RevealConnection,
    /// Make a team.
    CreateTeam,
    /// Halt, resume, pause widely, release the brake, decide about orphans.
    ManageRollouts,
}

/// Every action, for tests that walk them.
pub const ACTIONS: [Action; 8] = [
    Action::ViewCatalog,
    Action::ViewInstance,
    Action::RequestInstance,
    Action::ChangeInstance,
    Action::DeleteInstance,
    Action::RevealConnection,
    Action::CreateTeam,
    Action::ManageRollouts,
];

/// Where it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Nowhere in particular.
    Platform,
    /// In that team.
    Team(TeamId),
}

/// Whether the actor may. The table:
///
/// | action | anybody signed in | viewer | member | owner | admin |
/// |---|---|---|---|---|---|
/// | view the catalog | yes | yes | yes | yes | yes |
/// | view instances | – | yes | yes | yes | yes |
/// | request, change, delete, reveal | – | – | yes | yes | yes |
/// | create a team; halt, resume, pause widely, brake, orphans | – | – | – | – | yes |
pub fn allows(actor: &Actor, action: Action, scope: Scope) -> bool {
    if actor.admin {
        return true;
    }
    let role = match scope {
        Scope::Platform => None,
        Scope::Team(id) => actor.teams.iter().find(|t| t.id == id).and_then(|t| t.role),
    };
    match action {
        Action::ViewCatalog => true,
        Action::ViewInstance => role >= Some(Role::Viewer),
        Action::RequestInstance
        | Action::ChangeInstance
        | Action::DeleteInstance
        | Action::RevealConnection => role >= Some(Role::Member),
        Action::CreateTeam | Action::ManageRollouts => false,
    }
}

/// Refuses what is not allowed: as 404 where the actor may not even look, else as 403.
///
/// # Errors
/// The problem to answer with.
pub fn require(actor: &Actor, action: Action, scope: Scope, what: &str) -> Result<(), Problem> {
    if allows(actor, action, scope) {
        return Ok(());
    }
    if matches!(scope, Scope::Team(_)) && !allows(actor, Action::ViewInstance, scope) {
        return Err(Problem::not_found(what));
    }
    Err(Problem::forbidden(
        "Your role does not allow this. Ask an owner of the team, or an admin.",
    ))
}

impl Actor {
    /// The teams whose things the actor may see; none means all. For the SQL filter.
    pub fn visible_teams(&self) -> Option<Vec<Uuid>> {
        (!self.admin).then(|| {
            self.teams
                .iter()
                .filter(|t| allows(self, Action::ViewInstance, Scope::Team(t.id)))
                .map(|t| t.id.0)
                .collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor(admin: bool, role: Option<Role>) -> (Actor, Scope) {
        let id = TeamId(Uuid::from_u128(1));
        let teams = role
            .map(|role| Team {
                id,
                slug: "t".into(),
                title: "T".into(),
                role: Some(role),
            })
            .into_iter()
            .collect();
        (
            Actor {
                user: UserId(Uuid::nil()),
                name: "x".into(),
                admin,
                teams,
                via: Via::Token,
            },
            Scope::Team(id),
        )
    }

    #[test]
    fn the_table_holds() {
        let who = [
            (false, None),
            (false, Some(Role::Viewer)),
            (false, Some(Role::Member)),
            (false, Some(Role::Owner)),
            (true, None),
        ];
        let expected = |action| match action {
            Action::ViewCatalog => [true, true, true, true, true],
            Action::ViewInstance => [false, true, true, true, true],
            Action::CreateTeam | Action::ManageRollouts => [false, false, false, false, true],
            _ => [false, false, true, true, true],
        };
        for action in ACTIONS {
            let got = who.map(|(admin, role)| {
                let (actor, scope) = actor(admin, role);
                allows(&actor, action, scope)
            });
            assert_eq!(got, expected(action), "{action:?}");
        }
    }

    #[test]
    fn what_one_may_not_see_is_not_there() {
        let (stranger, scope) = actor(false, None);
        assert_eq!(
            require(&stranger, Action::DeleteInstance, scope, "instance")
                .expect_err("refused")
                .status,
            404
        );
        let (viewer, scope) = actor(false, Some(Role::Viewer));
        assert_eq!(
            require(&viewer, Action::DeleteInstance, scope, "instance")
                .expect_err("refused")
                .status,
            403
        );
        let other = Scope::Team(TeamId(Uuid::from_u128(2)));
        assert_eq!(
            require(&viewer, Action::ViewInstance, other, "instance")
                .expect_err("refused")
                .status,
            404
        );
    }
}
