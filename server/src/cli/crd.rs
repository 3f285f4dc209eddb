//! `svcforge crd`.

use crate::cluster;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct CrdArgs {
    /// Write one file a CRD into this folder instead of printing.
    #[arg(long)]
    out: Option<PathBuf>,
}

pub fn run(args: &CrdArgs) -> anyhow::Result<()> {
    for crd in cluster::crds() {
        let yaml = serde_saphyr::to_string(&crd)?;
        match &args.out {
            None => super::say(format!("---\n{yaml}")),
            Some(folder) => {
                std::fs::create_dir_all(folder)?;
                std::fs::write(folder.join(format!("{}.yaml", crd.spec.names.plural)), yaml)?;
            }
        }
    }
    Ok(())
}
