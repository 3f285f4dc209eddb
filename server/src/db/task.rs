//! Tasks, steps and logs as people read them: the hot table and the history as one.

use super::Timestamptz;
use sqlx::PgPool;
use svcforge_app::domain::{InstanceId, LogLine, Step, StepState, Task, TaskId, TaskState};
use uuid::Uuid;

struct Row {
    id: Uuid,
    kind: String,
    instance_id: Uuid,
    state: String,
    run_after: Timestamptz,
    attempt: i32,
    max_attempts: i32,
    reason: String,
    requested_by: String,
    traceparent: Option<String>,
    waiting_for: Option<String>,
    waiting_since: Option<Timestamptz>,
    error: Option<String>,
    created_at: Timestamptz,
    started_at: Option<Timestamptz>,
    finished_at: Option<Timestamptz>,
}

impl Row {
    fn into_task(self, steps: Vec<Step>) -> Task {
        Task {
            id: TaskId(self.id),
            kind: self.kind,
            instance_id: InstanceId(self.instance_id),
            state: TaskState::of(&self.state),
            run_after: self.run_after.to_jiff(),
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            reason: self.reason,
            requested_by: self.requested_by,
            traceparent: self.traceparent,
            waiting_for: self.waiting_for,
            waiting_since: self.waiting_since.map(Timestamptz::to_jiff),
            steps,
            error: self.error,
            created_at: self.created_at.to_jiff(),
            started_at: self.started_at.map(Timestamptz::to_jiff),
            finished_at: self.finished_at.map(Timestamptz::to_jiff),
        }
    }
}

/// Which tasks to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this instance.
    pub instance: Option<Uuid>,
    /// Of these teams; all when none.
    pub teams: Option<Vec<Uuid>>,
    /// Just this one.
    pub id: Option<Uuid>,
    /// Older than this id.
    pub before: Option<Uuid>,
}

/// A page of tasks, newest first, with their steps.
///
/// # Errors
/// From Postgres.
pub async fn list(pool: &PgPool, filter: &Filter, limit: i64) -> sqlx::Result<Vec<Task>> {
    let rows = sqlx::query_as!(
        Row,
        r#"select * from (
             select id as "id!", kind as "kind!", instance_id as "instance_id!", state as "state!", run_after as "run_after!",
                    attempt as "attempt!", max_attempts as "max_attempts!", reason as "reason!", requested_by as "requested_by!",
                    traceparent, waiting_for, waiting_since, error, created_at as "created_at!", started_at, null::timestamptz as finished_at
             from task where ($1::uuid is null or instance_id = $1) and ($2::uuid[] is null or team_id = any($2))
               and ($3::uuid is null or id = $3) and ($4::uuid is null or id < $4)
             union all
             select id, kind, instance_id, outcome, run_after, attempt, max_attempts, reason, requested_by,
                    traceparent, null, null, error, created_at, started_at, finished_at
             from task_history where ($1::uuid is null or instance_id = $1) and ($2::uuid[] is null or team_id = any($2))
               and ($3::uuid is null or id = $3) and ($4::uuid is null or id < $4)
           ) t order by 1 desc limit $5"#,
        filter.instance,
        filter.teams.as_deref(),
        filter.id,
        filter.before,
        limit
    )
    .fetch_all(pool)
    .await?;
    let ids: Vec<Uuid> = rows.iter().map(|r| r.id).collect();
    let mut steps = steps(pool, &ids).await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let own = steps
                .extract_if(.., |(id, _)| *id == row.id)
                .map(|(_, step)| step)
                .collect();
            row.into_task(own)
        })
        .collect())
}

async fn steps(pool: &PgPool, tasks: &[Uuid]) -> sqlx::Result<Vec<(Uuid, Step)>> {
    let rows = sqlx::query!(
        "select task_id, attempt, name, state, started_at, finished_at from task_step where task_id = any($1) order by task_id, seq",
        tasks
    )
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| {
            let state = match r.state.as_str() {
                "succeeded" => StepState::Succeeded,
                "failed" => StepState::Failed,
                _ => StepState::Running,
            };
            let step = Step {
                name: r.name,
                attempt: r.attempt,
                state,
                started_at: r.started_at.to_jiff(),
                finished_at: r.finished_at.map(Timestamptz::to_jiff),
            };
            (r.task_id, step)
        })
        .collect())
}

/// Log lines of a task after `after`, oldest first.
///
/// # Errors
/// From Postgres.
pub async fn log(pool: &PgPool, task: Uuid, after: i64, limit: i64) -> sqlx::Result<Vec<LogLine>> {
    let rows = sqlx::query!(
        "select seq, at, step, stream, text from task_log where task_id = $1 and seq > $2 order by seq limit $3",
        task,
        after,
        limit
    )
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| LogLine {
            seq: r.seq,
            at: r.at.to_jiff(),
            step: r.step,
            stream: r.stream,
            text: r.text,
        })
        .collect())
}

/// Ends the running step of a task, if any. Fenced by the token.
///
/// # Errors
/// From Postgres.
pub async fn end_step(pool: &PgPool, task: Uuid, token: i64, state: StepState) -> sqlx::Result<()> {
    sqlx::query!(
        "update task_step set state = $3, finished_at = clock_timestamp() where task_id = $1 and state = 'running'
           and exists (select from task where id = $1 and token = $2)",
        task,
        token,
        state.as_str()
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Begins a step of an attempt, ending the one before. False when the attempt has lost its lease.
///
/// # Errors
/// From Postgres.
pub async fn begin_step(
    pool: &PgPool,
    task: Uuid,
    token: i64,
    attempt: i32,
    name: &str,
) -> sqlx::Result<bool> {
    let begun = sqlx::query!(
        "with held as materialized (select id from task where id = $1 and token = $2),
         ended as (update task_step set state = 'succeeded', finished_at = clock_timestamp()
                   where task_id in (select id from held) and state = 'running')
         insert into task_step (task_id, seq, attempt, name, state, started_at)
         select id, 1 + coalesce((select max(seq) from task_step where task_id = $1), 0), $3, $4, 'running', clock_timestamp() from held",
        task,
        token,
        attempt,
        name
    )
    .execute(pool)
    .await?;
    Ok(begun.rows_affected() == 1)
}

/// Steps that an attempt before this one left running have failed.
///
/// # Errors
/// From Postgres.
pub async fn fail_stale_steps(
    pool: &PgPool,
    task: Uuid,
    token: i64,
    attempt: i32,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update task_step set state = 'failed', finished_at = clock_timestamp() where task_id = $1 and attempt < $2 and state = 'running'
           and exists (select from task where id = $1 and token = $3)",
        task,
        attempt,
        token
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// A line to keep.
#[derive(Debug)]
pub struct NewLine {
    /// When it was read.
    pub at: jiff::Timestamp,
    /// Which step wrote it.
    pub step: String,
    /// `stdout`, `stderr` or `svcforge`.
    pub stream: &'static str,
    /// Without newline, escape codes made visible.
    pub text: String,
}

/// Appends lines. Fenced by the token.
///
/// # Errors
/// From Postgres.
pub async fn append_log(
    pool: &PgPool,
    task: Uuid,
    token: i64,
    lines: &[NewLine],
) -> sqlx::Result<()> {
    let at: Vec<Timestamptz> = lines.iter().map(|l| l.at.into()).collect();
    let step: Vec<String> = lines.iter().map(|l| l.step.clone()).collect();
    let stream: Vec<String> = lines.iter().map(|l| l.stream.to_string()).collect();
    let text: Vec<String> = lines.iter().map(|l| l.text.clone()).collect();
    sqlx::query!(
        "insert into task_log (task_id, seq, at, step, stream, text)
         select $1, n + coalesce((select max(seq) from task_log where task_id = $1), 0), at, step, stream, text
         from unnest($3::timestamptz[], $4::text[], $5::text[], $6::text[]) with ordinality as l (at, step, stream, text, n)
         where exists (select from task where id = $1 and token = $2)",
        task,
        token,
        at as _,
        &step,
        &stream,
        &text
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// The team of a task, for the policy.
///
/// # Errors
/// From Postgres.
pub async fn find_team(pool: &PgPool, task: Uuid) -> sqlx::Result<Option<Uuid>> {
    Ok(sqlx::query_scalar!(
        "select team_id from task where id = $1 union all select team_id from task_history where id = $1 limit 1",
        task
    )
    .fetch_optional(pool)
    .await?
    .flatten())
}

/// The newest `limit` log lines of a task, oldest first.
///
/// # Errors
/// From Postgres.
pub async fn log_tail(pool: &PgPool, task: Uuid, limit: i64) -> sqlx::Result<Vec<LogLine>> {
    let newest = sqlx::query_scalar!("select max(seq) from task_log where task_id = $1", task)
        .fetch_one(pool)
        .await?;
    log(pool, task, (newest.unwrap_or(0) - limit).max(0), limit).await
}
