//! How to reach an instance; and the audited, sealed way to its secrets: the web makes a key for this one question, a worker
//! answers with a box that only this key opens, single use, gone within a minute.

use super::Ops;
use crate::{
    authz::{Action, Actor},
    db::{self, event::NewEvent},
    error::Error,
    ids,
    provision::connection,
};
use serde_json::json;
use std::time::Duration;
use svcforge_app::domain::{Connection, ConnectionField, InstanceState, Problem};
use uuid::Uuid;

/// How long a question lives.
const LIFETIME: Duration = Duration::from_secs(60);
/// How long the web waits for a worker.
const PATIENCE: Duration = Duration::from_secs(10);

/// The connection of an instance; with its secrets if `reveal`, which is audited.
///
/// # Errors
/// 404; 403; 409 before there is anything; 503 when no worker answers in time.
pub async fn reveal(ops: &Ops, actor: &Actor, id: Uuid, reveal: bool) -> Result<Connection, Error> {
    let action = if reveal {
        Action::RevealConnection
    } else {
        Action::ViewInstance
    };
    ops.require_on(actor, action, id).await?;
    let work = db::instance::load_work(&ops.pool, id).await?;
    let (revision, _) = db::catalog::load(&ops.pool, work.entry_revision_id).await?;
    // Without secrets there is nothing to reveal, and nothing to record.
    if !reveal || !revision.entry.connection.iter().any(|f| f.secret) {
        return Ok(connection::public(&revision.entry, &work)?);
    }
    if matches!(
        work.state,
        InstanceState::Requested | InstanceState::Deleted
    ) {
        return Err(Problem::conflict(format!(
            "It is {}: there is nothing to reveal.",
            work.state
        ))
        .into());
    }
    let secret = crypto_box::SecretKey::generate(&mut crypto_box::aead::OsRng);
    let question = ids::new_id();
    let mut tx = ops.pool.begin().await?;
    let message = format!("{} revealed its secrets", actor.name);
    let event = NewEvent {
        instance_id: id,
        kind: "connection.reveal",
        actor: &actor.name,
        message: &message,
        task_id: None,
    };
    db::event::insert(&mut tx, event).await?;
    db::audit::insert(
        &mut tx,
        actor,
        "connection.reveal",
        ("instance", &id.to_string()),
        &json!({}),
    )
    .await?;
    tx.commit().await?;
    db::reveal::insert(
        &ops.pool,
        question,
        id,
        secret.public_key().as_bytes(),
        LIFETIME,
    )
    .await?;
    ops.changes.work();
    ops.changes.changed("instance", id);
    let sealed = wait(ops, question).await?;
    let open = secret
        .unseal(&sealed)
        .map_err(|_| anyhow::anyhow!("a worker's answer cannot be opened"))?;
    let fields: Vec<ConnectionField> =
        serde_json::from_slice(&open).map_err(anyhow::Error::from)?;
    Ok(Connection { fields })
}

async fn wait(ops: &Ops, question: Uuid) -> Result<Vec<u8>, Error> {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        match db::reveal::take(&ops.pool, question).await? {
            Some(Ok(sealed)) => return Ok(sealed),
            Some(Err(why)) => return Err(Problem::conflict(why).into()),
            None if tokio::time::Instant::now() > until => {
                return Err(Problem::unavailable(
                    "No worker answered in time. Try again in a few seconds.",
                )
                .into());
            }
            None => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
