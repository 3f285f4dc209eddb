//! `svcforge seed`: many instances to look at, written in a few statements. Refuses a database that is bound to a cluster.

use crate::{config, db};
use clap::Args;

#[derive(Args, Debug)]
pub struct SeedArgs {
    /// How many.
    #[arg(long, default_value_t = 100)]
    instances: i64,
    #[command(flatten)]
    database: config::Database,
}

pub async fn run(args: SeedArgs) -> anyhow::Result<()> {
    let pool = db::connect(&args.database).await?;
    db::check_migrated(&pool).await?;
    let made = db::seed::instances(&pool, args.instances).await?;
    super::say(format!("made {made} instances"));
    Ok(())
}
