//! `svcforge adopt`: N1 lets nothing be touched that does not carry our labels; this puts them on a release that is one instance's
//! and was made before the labels existed.

use super::say;
use crate::{
    authz::{Actor, Via},
    cluster, config, db,
};
use clap::Args;
use serde_json::json;
use svcforge_app::domain::UserId;
use uuid::Uuid;

#[derive(Args, Debug)]
pub struct AdoptArgs {
    /// The instance whose release it is.
    #[arg(long)]
    instance: Uuid,
    /// Why.
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    database: config::Database,
    #[command(flatten)]
    cluster: config::Cluster,
}

pub async fn run(args: AdoptArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        !args.reason.trim().is_empty(),
        "--reason is required: say why"
    );
    let pool = db::connect(&args.database).await?;
    db::check_migrated(&pool).await?;
    let clients = cluster::connect(&args.cluster).await?.ok_or_else(|| {
        anyhow::anyhow!("no cluster: name one with SVCFORGE_KUBECONFIG or SVCFORGE_IN_CLUSTER=true")
    })?;
    cluster::bind(&clients, &pool).await?;
    let installation = db::installation::load(&pool).await?.id.to_string();
    anyhow::ensure!(
        db::instance::find_team(&pool, args.instance)
            .await?
            .is_some(),
        "there is no instance {}",
        args.instance
    );
    let work = db::instance::load_work(&pool, args.instance).await?;
    let adopted = cluster::release::adopt(
        &clients,
        &work.release_namespace,
        &work.release_name,
        &installation,
        &args.instance.to_string(),
        false,
    )
    .await?;
    let actor = Actor {
        user: UserId(Uuid::nil()),
        name: format!("admin (command line, {})", config::login_name()),
        admin: true,
        teams: vec![],
        via: Via::Local,
    };
    let mut tx = pool.begin().await?;
    let detail = json!({"release": work.release_name, "namespace": work.release_namespace, "revision": adopted, "reason": args.reason});
    db::audit::insert(
        &mut tx,
        &actor,
        "release.adopt",
        ("instance", &args.instance.to_string()),
        &detail,
    )
    .await?;
    db::instance::set_revision(&mut tx, args.instance, adopted).await?;
    tx.commit().await?;
    say(format!(
        "revision {adopted} of release {} in {} is this instance's now",
        work.release_name, work.release_namespace
    ));
    Ok(())
}
