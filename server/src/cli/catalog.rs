//! `svcforge catalog check`.

use crate::catalog;
use clap::Subcommand;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum CatalogCommand {
    /// Says what is wrong with a catalog, with file and line; exits 1 if anything is.
    Check {
        /// The catalog.
        path: PathBuf,
    },
}

pub fn run(command: &CatalogCommand) -> anyhow::Result<()> {
    let CatalogCommand::Check { path } = command;
    match catalog::load(path) {
        Ok(entries) => {
            for packed in &entries {
                super::say(format!(
                    "{} {}: ok",
                    packed.entry.service_type, packed.entry.chart_version
                ));
            }
            Ok(())
        }
        Err(faults) => {
            let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
            anyhow::bail!("the catalog is not valid:\n{}", lines.join("\n"))
        }
    }
}
