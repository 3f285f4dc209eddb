//! Numbers for the metrics.

use sqlx::PgPool;
use std::collections::BTreeMap;

/// What the gauges show.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Waiting tasks, parked ones too.
    pub queue_depth: i64,
    /// Instances by state; states without any are missing.
    pub instances: BTreeMap<String, i64>,
}

/// Reads them.
///
/// # Errors
/// From Postgres.
pub async fn read(pool: &PgPool) -> sqlx::Result<Gauges> {
    let queue_depth =
        sqlx::query_scalar!(r#"select count(*) as "n!" from task where state <> 'running'"#)
            .fetch_one(pool)
            .await?;
    let rows = sqlx::query!(r#"select state, count(*) as "n!" from instance group by state"#)
        .fetch_all(pool)
        .await?;
    Ok(Gauges {
        queue_depth,
        instances: rows.into_iter().map(|r| (r.state, r.n)).collect(),
    })
}
