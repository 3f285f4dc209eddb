//! The identities that `up` on loopback gives: an admin, a team, a one-time link and a token.

use crate::{db, http::new_token, ids};
use sqlx::PgPool;
use svcforge_app::domain::{Role, name::team_namespace};

/// What `up` hands out.
pub struct Handout {
    /// Path of the one-time link.
    pub link: String,
    /// Token of the admin.
    pub token: String,
}

/// How long the printed link works, seconds.
const LINK_SECONDS: f64 = 3600.0;

/// Makes admin and team where missing, and a new link and token.
pub async fn hand_out(pool: &PgPool) -> anyhow::Result<Handout> {
    let mut tx = pool.begin().await?;
    let admin = db::user::ensure(&mut tx, "admin", true).await?;
    let team = match db::team::find(pool, "demo").await? {
        Some(team) => team.id,
        None => {
            let id = ids::new_id();
            db::team::insert(&mut tx, id, "demo", "Demo team", &team_namespace("demo")).await?;
            id
        }
    };
    db::team::set_role(&mut tx, team, admin, Role::Owner).await?;
    let (token, id, hash) = new_token();
    db::user::replace_token(&mut tx, admin, "up", &id, &hash).await?;
    let secret = ids::new_secret();
    db::user::insert_link(&mut tx, &crate::http::hash(&secret), admin, LINK_SECONDS).await?;
    tx.commit().await?;
    Ok(Handout {
        link: format!("/signin/{secret}"),
        token,
    })
}
