//! `svcforge migrate`.

use crate::{config, db};
use clap::Args;

#[derive(Args, Debug)]
pub struct MigrateArgs {
    #[command(flatten)]
    database: config::Database,
}

pub async fn run(args: MigrateArgs) -> anyhow::Result<()> {
    let direct = config::Database {
        pg_dsn: Some(args.database.direct_dsn()?.to_owned()),
        ..args.database
    };
    let pool = db::connect(&direct).await?;
    db::migrate(&pool).await?;
    super::say("the database is up to date");
    Ok(())
}
