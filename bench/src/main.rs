//! `./dev bench`: what `bar.md` asks of the engine, in one process, against a Postgres that is handed in. Prints JSON lines that
//! `bench/run.mjs` puts beside the peers' into one table. Never a timed test: ratios are read, not asserted.
#![allow(clippy::print_stdout, reason = "its output is the result")]

mod queue;
mod setup;
mod tick;

use anyhow::Context;
use serde_json::json;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let what = args
        .next()
        .context("say what to measure: queue, tick or sweep")?;
    let dsn = args
        .next()
        .context("name the Postgres, as an admin's DSN")?;
    match what.as_str() {
        "queue" => {
            let jobs = args.next().map_or(Ok(100_000), |n| n.parse())?;
            let only = args.next();
            let want = |row: &str| only.as_deref().is_none_or(|only| only == row);
            if want("P1") {
                queue::batched(&dsn, jobs).await?;
            }
            if want("P2") {
                queue::one_by_one(&dsn, jobs / 10).await?;
            }
            if want("P3") {
                queue::latency(&dsn).await?;
            }
            if want("P4") {
                queue::blocked(&dsn, jobs).await?;
            }
            if want("P5") {
                queue::notify_cost(&dsn).await?;
            }
            Ok(())
        }
        "tick" => {
            let instances = args.next().map_or(Ok(100_000), |n| n.parse())?;
            tick::measure(&dsn, instances).await
        }
        "sweep" => {
            let kubeconfig = args.next().context("name the kubeconfig")?;
            let releases = args.next().map_or(Ok(10_000), |n| n.parse())?;
            tick::sweep(&kubeconfig, releases).await
        }
        other => anyhow::bail!("there is no {other:?}: queue, tick or sweep"),
    }
}

/// One result.
pub fn result(row: &str, what: &str, value: f64, unit: &str) {
    println!(
        "{}",
        json!({"row": row, "what": what, "value": value, "unit": unit})
    );
}

/// The value at that quantile of what is sorted here.
pub fn at(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (q * values.len() as f64) as usize;
    values
        .get(index.min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}
