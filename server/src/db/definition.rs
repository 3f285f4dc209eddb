//! What was seen of ServiceDefinitions and Workflows.

use super::Timestamptz;
use jiff::Timestamp;
use sqlx::{PgConnection, PgExecutor};
use svcforge_app::domain::{Definition, InstanceId, WorkflowView};
use uuid::Uuid;

/// Keeps these definitions, and forgets those of the namespace that are not among `there`.
///
/// # Errors
/// From Postgres.
pub async fn keep_definitions(
    db: &mut PgConnection,
    namespace: &str,
    seen: &[Definition],
    there: &[String],
) -> sqlx::Result<()> {
    let text =
        |f: fn(&Definition) -> &String| seen.iter().map(|d| f(d).clone()).collect::<Vec<_>>();
    let maybe = |f: fn(&Definition) -> &Option<String>| {
        seen.iter().map(|d| f(d).clone()).collect::<Vec<_>>()
    };
    let number = |f: fn(&Definition) -> i32| seen.iter().map(f).collect::<Vec<_>>();
    let created: Vec<Timestamptz> = seen.iter().map(|d| d.created_at.into()).collect();
    sqlx::query!(
        "insert into definition_seen (namespace, name, owner, image, port, replicas, available, ready, phase, message, workflow, instance_id, created_at)
         select $1, * from unnest($2::text[], $3::text[], $4::text[], $5::int[], $6::int[], $7::int[], $8::bool[], $9::text[], $10::text[], $11::text[],
                                  $12::uuid[], $13::timestamptz[])
         on conflict (namespace, name) do update set owner = excluded.owner, image = excluded.image, port = excluded.port, replicas = excluded.replicas,
            available = excluded.available, ready = excluded.ready, phase = excluded.phase, message = excluded.message, workflow = excluded.workflow,
            instance_id = excluded.instance_id, created_at = excluded.created_at, at = now()",
        namespace,
        &text(|d| &d.name),
        &maybe(|d| &d.owner) as _,
        &text(|d| &d.image),
        &number(|d| d.port),
        &number(|d| d.replicas),
        &number(|d| d.available),
        &seen.iter().map(|d| d.ready).collect::<Vec<_>>(),
        &text(|d| &d.phase),
        &maybe(|d| &d.message) as _,
        &maybe(|d| &d.workflow) as _,
        &seen.iter().map(|d| d.instance.map(|i| i.0)).collect::<Vec<Option<Uuid>>>() as _,
        created as _
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "delete from definition_seen where namespace = $1 and name <> all($2)",
        namespace,
        there
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Keeps these workflows, and forgets those of the namespace that are not among `there`.
///
/// # Errors
/// From Postgres.
pub async fn keep_workflows(
    db: &mut PgConnection,
    namespace: &str,
    seen: &[WorkflowView],
    there: &[String],
) -> sqlx::Result<()> {
    for w in seen {
        let stages = serde_json::to_value(&w.stages).unwrap_or_default();
        sqlx::query!(
            "insert into workflow_seen (namespace, name, ready, phase, progress, message, stages, created_at) values ($1, $2, $3, $4, $5, $6, $7, $8)
             on conflict (namespace, name) do update set ready = excluded.ready, phase = excluded.phase, progress = excluded.progress,
                message = excluded.message, stages = excluded.stages, created_at = excluded.created_at, at = now()",
            namespace,
            w.name,
            w.ready,
            w.phase,
            w.progress,
            w.message,
            stages,
            Timestamptz::from(w.created_at) as Timestamptz
        )
        .execute(&mut *db)
        .await?;
    }
    sqlx::query!(
        "delete from workflow_seen where namespace = $1 and name <> all($2)",
        namespace,
        there
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Keeps that what is kept of the namespace was just seen to be so; or why it could not be looked at.
///
/// # Errors
/// From Postgres.
pub async fn set_read(
    db: impl PgExecutor<'_>,
    namespace: &str,
    error: Option<&str>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into definitions_read as r (namespace, at, error) values ($1, case when $2::text is null then now() end, $2)
         on conflict (only_row) do update set namespace = excluded.namespace, error = excluded.error,
            at = coalesce(excluded.at, case when r.namespace = excluded.namespace then r.at end)",
        namespace,
        error
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Whether what is kept is so.
#[derive(Clone, Debug, Default)]
pub struct Read {
    /// When it was last seen to be.
    pub at: Option<Timestamp>,
    /// Why it could not be looked at since.
    pub error: Option<String>,
    /// Nobody has looked for longer than anybody who does would wait.
    pub late: bool,
}

/// Whether what is kept is so; nothing is known before the first look.
///
/// # Errors
/// From Postgres.
pub async fn find_read(db: impl PgExecutor<'_>) -> sqlx::Result<Read> {
    let row = sqlx::query!(
        r#"select at, error, coalesce(at < now() - interval '2 minutes', false) as "late!" from definitions_read"#
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map_or_else(Read::default, |r| Read {
        at: r.at.map(Timestamptz::to_jiff),
        error: r.error,
        late: r.late,
    }))
}

/// Definitions of the namespace that was read last, by name: those of these teams' services, and those that svcforge did not make; all
/// where `teams` is none.
///
/// # Errors
/// From Postgres.
pub async fn list(
    db: impl PgExecutor<'_>,
    teams: Option<&[Uuid]>,
    limit: i64,
) -> sqlx::Result<Vec<Definition>> {
    let rows = sqlx::query!(
        "select d.* from definition_seen d join definitions_read r using (namespace) left join instance i on i.id = d.instance_id
         where $1::uuid[] is null or d.instance_id is null or i.team_id = any($1)
         order by d.name limit $2",
        teams,
        limit
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Definition {
            namespace: r.namespace,
            name: r.name,
            owner: r.owner,
            image: r.image,
            port: r.port,
            replicas: r.replicas,
            available: r.available,
            ready: r.ready,
            phase: r.phase,
            message: r.message,
            workflow: r.workflow,
            instance: r.instance_id.map(InstanceId),
            created_at: r.created_at.to_jiff(),
        })
        .collect())
}

/// Workflows of the namespace that was read last, by name.
///
/// # Errors
/// From Postgres.
pub async fn list_workflows(
    db: impl PgExecutor<'_>,
    limit: i64,
) -> sqlx::Result<Vec<WorkflowView>> {
    let rows = sqlx::query!(
        "select w.* from workflow_seen w join definitions_read r using (namespace) order by w.name limit $1",
        limit
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| WorkflowView {
            namespace: r.namespace,
            name: r.name,
            ready: r.ready,
            phase: r.phase,
            progress: r.progress,
            message: r.message,
            stages: serde_json::from_value(r.stages).unwrap_or_default(),
            created_at: r.created_at.to_jiff(),
        })
        .collect())
}
