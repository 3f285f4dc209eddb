//! `svcforge admin` (N8): works with the DSN alone, wants a reason, writes the same audit. For when nobody can sign in.

use super::say;
use crate::{
    authz::{Actor, Via},
    changes::Changes,
    config, db, ids,
    ops::{self, Ops, PauseAsk, WidePause},
};
use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;
use svcforge_app::domain::UserId;
use uuid::Uuid;

#[derive(Args, Debug)]
pub struct AdminArgs {
    #[command(flatten)]
    database: config::Database,
    #[command(subcommand)]
    command: AdminCommand,
}

/// Everything one may need while the portal is out of reach.
#[derive(Subcommand, Debug)]
pub enum AdminCommand {
    /// Halts the rollout of a type, or of everything.
    Halt(Turn),
    /// Resumes it.
    Resume(Turn),
    /// Stops all that svcforge does by itself: for an instance, a team, a type or everything.
    Pause(Pause),
    /// Ends such a pause.
    Unpause(Place),
    /// The brake on repairs.
    Brake {
        /// Lets the list go that the brake was put on for; without it, shows the brake.
        #[arg(long)]
        release: bool,
        /// Why.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Users.
    #[command(subcommand)]
    User(User),
}

/// Which rollout, and why.
#[derive(Args, Debug)]
pub struct Turn {
    /// The type; everything with `--all`.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    service_type: Option<String>,
    /// Everything.
    #[arg(long)]
    all: bool,
    /// Why.
    #[arg(long)]
    reason: String,
}

/// What a pause speaks of.
#[derive(Args, Debug)]
#[group(required = true, multiple = false, id = "of")]
pub struct Place {
    /// An instance's id.
    #[arg(long, group = "of")]
    instance: Option<Uuid>,
    /// A team's slug.
    #[arg(long, group = "of")]
    team: Option<String>,
    /// A service type.
    #[arg(long = "type", group = "of")]
    service_type: Option<String>,
    /// Everything.
    #[arg(long, group = "of")]
    all: bool,
}

/// What is paused, why, and until when.
#[derive(Args, Debug)]
pub struct Pause {
    #[command(flatten)]
    of: Place,
    /// Why.
    #[arg(long)]
    reason: String,
    /// Until when, RFC 3339; until somebody ends it when left out.
    #[arg(long)]
    until: Option<Timestamp>,
}

/// Users.
#[derive(Subcommand, Debug)]
pub enum User {
    /// Makes a user, or makes one an admin, and prints a one-time sign-in path (an hour).
    Link {
        /// Its name.
        name: String,
        /// An admin.
        #[arg(long)]
        admin: bool,
        /// Why.
        #[arg(long)]
        reason: String,
    },
    /// Ends a user's sessions and tokens at once.
    Disable {
        /// Its name.
        name: String,
        /// Why.
        #[arg(long)]
        reason: String,
    },
    /// Lets a disabled user in again.
    Enable {
        /// Its name.
        name: String,
        /// Why.
        #[arg(long)]
        reason: String,
    },
}

/// How long a printed link works, seconds.
const LINK_SECONDS: f64 = 3600.0;

pub async fn run(args: AdminArgs) -> anyhow::Result<()> {
    let pool = db::connect(&args.database).await?;
    db::check_migrated(&pool).await?;
    let ops = Ops {
        changes: Changes::start(pool.clone()),
        pool,
        apps_namespace: String::new(),
        own_team: String::new(),
    };
    let actor = Actor {
        user: UserId(Uuid::nil()),
        name: format!("admin (command line, {})", config::login_name()),
        admin: true,
        teams: vec![],
        via: Via::Local,
    };
    let said = act(&ops, &actor, args.command).await;
    // Told after a moment; the process must not end before.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    said
}

async fn act(ops: &Ops, actor: &Actor, command: AdminCommand) -> anyhow::Result<()> {
    match command {
        AdminCommand::Halt(turn) => {
            ops::halt(ops, actor, turn.service_type.as_deref(), &turn.reason)
                .await
                .map_err(words)?;
            say(format!(
                "halted: {}",
                turn.service_type.as_deref().unwrap_or("everything")
            ));
        }
        AdminCommand::Resume(turn) => {
            ops::resume(ops, actor, turn.service_type.as_deref(), &turn.reason)
                .await
                .map_err(words)?;
            say(format!(
                "resumed: {}",
                turn.service_type.as_deref().unwrap_or("everything")
            ));
        }
        AdminCommand::Pause(Pause { of, reason, until }) => {
            if let Some(id) = of.instance {
                ops::pause_instance(ops, actor, id, Some(PauseAsk { reason, until }))
                    .await
                    .map_err(words)?;
            } else {
                ops::pause_wide(ops, actor, wide(of, reason, until), false)
                    .await
                    .map_err(words)?;
            }
            say("paused");
        }
        AdminCommand::Unpause(of) => {
            if let Some(id) = of.instance {
                ops::pause_instance(ops, actor, id, None)
                    .await
                    .map_err(words)?;
            } else {
                ops::pause_wide(ops, actor, wide(of, String::new(), None), true)
                    .await
                    .map_err(words)?;
            }
            say("the pause has ended");
        }
        AdminCommand::Brake { release: false, .. } => {
            let brake = db::drift::find_brake(&ops.pool).await?;
            say(match (brake.open, brake.reason) {
                (true, Some(reason)) => format!("on: {reason}"),
                (false, Some(reason)) => format!(
                    "released by {}: {reason}",
                    brake.released_by.unwrap_or_default()
                ),
                _ => "off".into(),
            });
        }
        AdminCommand::Brake { reason, .. } => {
            let brake = db::drift::find_brake(&ops.pool).await?;
            ops::release_brake(ops, actor, &brake.list.unwrap_or_default(), &reason)
                .await
                .map_err(words)?;
            say(format!(
                "released ({}): what was waiting is provisioned again, paced",
                brake.reason.unwrap_or_default()
            ));
        }
        AdminCommand::User(user) => users(ops, actor, user).await?,
    }
    Ok(())
}

fn wide(of: Place, reason: String, until: Option<Timestamp>) -> WidePause {
    WidePause {
        team: of.team,
        service_type: of.service_type,
        all: of.all,
        reason,
        until,
    }
}

fn words(error: crate::error::Error) -> anyhow::Error {
    let problem = error.into_problem();
    let fields: Vec<String> = problem
        .errors
        .iter()
        .map(|e| format!("{}: {}", e.pointer, e.detail))
        .collect();
    anyhow::anyhow!(
        "{}{}{}",
        problem.detail,
        if fields.is_empty() { "" } else { " — " },
        fields.join("; ")
    )
}

async fn users(ops: &Ops, actor: &Actor, user: User) -> anyhow::Result<()> {
    let (name, reason, action) = match &user {
        User::Link { name, reason, .. } => (name, reason, "user.link"),
        User::Disable { name, reason } => (name, reason, "user.disable"),
        User::Enable { name, reason } => (name, reason, "user.enable"),
    };
    anyhow::ensure!(!reason.trim().is_empty(), "--reason is required: say why");
    let mut tx = ops.pool.begin().await?;
    let said = match &user {
        User::Link { name, admin, .. } => {
            let id = db::user::ensure(&mut tx, name, *admin).await?;
            if *admin {
                db::user::make_admin(&mut tx, id).await?;
            }
            let secret = ids::new_secret();
            db::user::insert_link(&mut tx, &crate::http::hash(&secret), id, LINK_SECONDS).await?;
            format!("sign in once, within an hour: <the portal's address>/signin/{secret}")
        }
        User::Disable { name, .. } | User::Enable { name, .. } => {
            let disable = matches!(user, User::Disable { .. });
            let found = db::user::set_disabled(&mut tx, name, disable).await?;
            anyhow::ensure!(found, "there is no user {name:?}");
            format!("{name} is {}", if disable { "disabled" } else { "enabled" })
        }
    };
    let detail = json!({"reason": reason});
    db::audit::insert(&mut tx, actor, action, ("user", name), &detail).await?;
    tx.commit().await.context("nothing was changed")?;
    say(said);
    Ok(())
}
