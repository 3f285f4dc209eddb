//! The queue's SQL. Every change of a lane is one transaction of at least two statements: first, alone, [`lock_lanes`];
//! then, in a new statement, read and write. (In one statement the snapshot is older than the lock, and a task stays blocked
//! for ever.) Leases read `clock_timestamp()`, scheduling reads `now()`.

use super::Timestamptz;
use jiff::Timestamp;
use serde_json::Value;
use sqlx::{PgConnection, PgPool};
use std::time::Duration;
use svcforge_app::domain::Act;
use uuid::Uuid;

/// Something to do.
#[derive(Debug)]
pub struct NewTask<'a> {
    /// A word; workers leave kinds they do not know.
    pub kind: &'a str,
    /// Whose lane.
    pub instance_id: Uuid,
    /// Whose share.
    pub team_id: Uuid,
    /// Within a lane, lowest first.
    pub priority: Priority,
    /// Not before; now when none.
    pub run_after: Option<Timestamp>,
    /// Attempts before it fails for good.
    pub max_attempts: i32,
    /// For the handler. Never a secret.
    pub payload: Value,
    /// Why, in words.
    pub reason: &'a str,
    /// A user's name or a part of svcforge.
    pub requested_by: &'a str,
    /// The row of [`may_act`](svcforge_app::domain::may_act) that is asked before it starts.
    pub act: Act,
    /// Set for an upgrade that must be admitted: it waits `gated` when it is due.
    pub rollout_type: Option<&'a str>,
}

/// Order within a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum Priority {
    /// Removal overtakes everything.
    Deprovision = 0,
    /// A person asked.
    Person = 1,
    /// The reconciler repairs.
    Repair = 2,
    /// An upgrade that closes a hole.
    Security = 3,
    /// An upgrade.
    Upgrade = 4,
}

/// What became of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// The task that will do it.
    pub id: Uuid,
    /// False when it was merged into one that waited already.
    pub created: bool,
}

/// A task in a worker's hands.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Its id.
    pub id: Uuid,
    /// Its kind.
    pub kind: String,
    /// Whose lane.
    pub instance_id: Uuid,
    /// For the handler.
    pub payload: Value,
    /// From 1.
    pub attempt: i32,
    /// How many there may be.
    pub max_attempts: i32,
    /// The fence.
    pub token: i64,
    /// Who asked.
    pub requested_by: String,
    /// Why.
    pub reason: String,
    /// What the attempt before this one ended in.
    pub error: Option<String>,
    /// Why it should not even begin, when somebody asked.
    pub stop_reason: Option<String>,
    /// The row of `may_act`'s table, as a word.
    pub act: Option<String>,
    /// The service type whose slots it takes.
    pub rollout_type: Option<String>,
    /// W3C trace context of who asked.
    pub traceparent: Option<String>,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Succeeded,
    /// Given up.
    Failed,
    /// Not wanted any more.
    Cancelled,
    /// Merged into another.
    Superseded,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Superseded => "superseded",
        }
    }
}

/// How an attempt goes back to the queue.
#[derive(Clone, Debug)]
pub enum Return {
    /// It failed; again after the pause.
    Retry {
        /// What went wrong.
        error: String,
        /// How long to wait.
        pause: Duration,
    },
    /// An outage: costs no attempt.
    Wait {
        /// What it waits for.
        what: String,
        /// The outage in the words of who saw it.
        error: String,
        /// How long until the next look.
        pause: Duration,
    },
    /// A shutdown: costs no attempt and no pause.
    GiveBack,
    /// It may not start yet: costs no attempt. Waits gated, or parked until then.
    Gate {
        /// Why not.
        why: String,
        /// Not before.
        until: Option<Timestamp>,
    },
}

/// Locks the lanes of these instances, in an order that cannot deadlock. Always its own statement, always first.
///
/// # Errors
/// From Postgres.
pub async fn lock_lanes(db: &mut PgConnection, instances: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!(
        "select id from instance where id = any($1) order by id for no key update",
        instances
    )
    .fetch_all(db)
    .await?;
    Ok(())
}

/// Demotes heads that something better overtakes, then gives every lane without a head its best due task. The lanes must be locked.
async fn settle(db: &mut PgConnection, instances: &[Uuid]) -> sqlx::Result<u64> {
    sqlx::query!(
        "update task h set state = 'blocked'
         where h.instance_id = any($1) and h.state = 'ready'
           and exists (select from task w where w.instance_id = h.instance_id and w.state = 'blocked' and w.priority < h.priority)",
        instances
    )
    .execute(&mut *db)
    .await?;
    // Rank: the share its team has already (counted to 200), so that one team's many never stand before another's first.
    let promoted = sqlx::query!(
        "with head as (
            select distinct on (t.instance_id) t.id, t.team_id from task t
            where t.instance_id = any($1) and t.state = 'blocked'
              and not exists (select from task r where r.instance_id = t.instance_id and r.state in ('ready', 'running'))
            order by t.instance_id, t.priority, t.run_after, t.id),
         share as (
            select team_id, (select count(*) from (select from task o where o.team_id = h.team_id and o.state in ('ready', 'running') limit 200) x) as held
            from (select distinct team_id from head) h),
         ranked as (
            select head.id, coalesce(share.held, 0) + row_number() over (partition by head.team_id order by head.id) - 1 as rank
            from head left join share using (team_id))
         update task set state = 'ready', rank = ranked.rank::int from ranked where task.id = ranked.id",
        instances
    )
    .execute(db)
    .await?;
    Ok(promoted.rows_affected())
}

/// Asks for a task; merges into one of its kind that already waits (earliest time, newest payload). Locks the lane.
///
/// # Errors
/// From Postgres.
pub async fn enqueue(db: &mut PgConnection, new: NewTask<'_>) -> sqlx::Result<Enqueued> {
    lock_lanes(db, &[new.instance_id]).await?;
    let row = sqlx::query!(
        r#"insert into task (id, kind, instance_id, team_id, state, priority, run_after, max_attempts, payload, reason, requested_by, traceparent,
                             act, rollout_type)
           values ($1, $2, $3, $4, case when $6::timestamptz > now() then 'parked' when $13::text is not null then 'gated' else 'blocked' end,
                   $5, coalesce($6::timestamptz, now()), $7, $8, $9, $10, $11, $12, $13)
           on conflict (instance_id, kind) where state <> 'running' do update set
               payload = excluded.payload, reason = excluded.reason, requested_by = excluded.requested_by,
               traceparent = excluded.traceparent, act = excluded.act, rollout_type = excluded.rollout_type,
               slot_since = case when excluded.rollout_type is null then null else task.slot_since end,
               max_attempts = greatest(excluded.max_attempts, task.attempt + 1), waiting_for = null, waiting_since = null,
               priority = least(task.priority, excluded.priority),
               run_after = least(task.run_after, excluded.run_after),
               state = case when task.state = 'ready' then 'ready'
                            when least(task.run_after, excluded.run_after) > now() then 'parked'
                            when excluded.rollout_type is not null then 'gated'
                            else 'blocked' end
           returning id, (xmax = 0) as "created!""#,
        crate::ids::new_id(),
        new.kind,
        new.instance_id,
        new.team_id,
        new.priority as i16,
        new.run_after.map(Timestamptz::from) as Option<Timestamptz>,
        new.max_attempts,
        new.payload,
        new.reason,
        new.requested_by,
        crate::telemetry::traceparent(),
        new.act.as_str(),
        new.rollout_type,
    )
    .fetch_one(&mut *db)
    .await?;
    settle(db, &[new.instance_id]).await?;
    Ok(Enqueued {
        id: row.id,
        created: row.created,
    })
}

/// Asks for many tasks at once, in a fixed number of statements. Where one of its kind waits already nothing is asked. Returns
/// instance and task of those that were created. Locks the lanes.
///
/// # Errors
/// From Postgres.
pub async fn enqueue_many(
    db: &mut PgConnection,
    new: &[NewTask<'_>],
) -> sqlx::Result<Vec<(Uuid, Uuid)>> {
    let lanes: Vec<Uuid> = new.iter().map(|t| t.instance_id).collect();
    lock_lanes(db, &lanes).await?;
    let ids: Vec<Uuid> = new.iter().map(|_| crate::ids::new_id()).collect();
    let text = |f: fn(&NewTask<'_>) -> String| new.iter().map(f).collect::<Vec<_>>();
    let run_after: Vec<Option<Timestamptz>> = new
        .iter()
        .map(|t| t.run_after.map(Timestamptz::from))
        .collect();
    let created = sqlx::query!(
        "insert into task (id, kind, instance_id, team_id, state, priority, run_after, max_attempts, payload, reason, requested_by, traceparent,
                           act, rollout_type)
         select id, kind, instance_id, team_id,
                case when run_after > now() then 'parked' when rollout_type is not null then 'gated' else 'blocked' end,
                priority, coalesce(run_after, now()), max_attempts, payload, reason, requested_by, $12, act, rollout_type
         from unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::smallint[], $6::timestamptz[], $7::int[], $8::jsonb[], $9::text[],
                     $10::text[], $11::text[], $13::text[])
              as n (id, kind, instance_id, team_id, priority, run_after, max_attempts, payload, reason, requested_by, act, rollout_type)
         order by id
         on conflict (instance_id, kind) where state <> 'running' do nothing
         returning id, instance_id",
        &ids,
        &text(|t| t.kind.to_owned()),
        &lanes,
        &new.iter().map(|t| t.team_id).collect::<Vec<_>>(),
        &new.iter().map(|t| t.priority as i16).collect::<Vec<_>>(),
        run_after as _,
        &new.iter().map(|t| t.max_attempts).collect::<Vec<_>>(),
        &new.iter().map(|t| t.payload.clone()).collect::<Vec<_>>(),
        &text(|t| t.reason.to_owned()),
        &text(|t| t.requested_by.to_owned()),
        &text(|t| t.act.as_str().to_owned()),
        crate::telemetry::traceparent(),
        &new.iter().map(|t| t.rollout_type.map(str::to_owned)).collect::<Vec<_>>() as _,
    )
    .fetch_all(&mut *db)
    .await?;
    settle(db, &lanes).await?;
    Ok(created.into_iter().map(|r| (r.instance_id, r.id)).collect())
}

/// Lets gated tasks into their lanes; those that are not gated any more are left alone. The lanes must be locked.
///
/// # Errors
/// From Postgres.
pub async fn admit(db: &mut PgConnection, tasks: &[Uuid], instances: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!(
        "update task set state = 'blocked', waiting_for = null, waiting_since = null where id = any($1) and state = 'gated'",
        tasks
    )
    .execute(&mut *db)
    .await?;
    settle(db, instances).await?;
    Ok(())
}

/// Says of gated tasks what they wait for, and parks those that know until when. Only what differs is written.
///
/// # Errors
/// From Postgres.
pub async fn keep_gated(
    db: &mut PgConnection,
    tasks: &[(Uuid, String, Option<Timestamp>)],
) -> sqlx::Result<()> {
    let ids: Vec<Uuid> = tasks.iter().map(|t| t.0).collect();
    let why: Vec<String> = tasks.iter().map(|t| t.1.clone()).collect();
    let until: Vec<Option<Timestamptz>> =
        tasks.iter().map(|t| t.2.map(Timestamptz::from)).collect();
    sqlx::query!(
        "update task set waiting_for = n.why, waiting_since = coalesce(waiting_since, now()),
                run_after = coalesce(n.until, run_after), state = case when n.until > now() then 'parked' else 'gated' end,
                slot_since = case when n.until > now() then null else slot_since end
         from unnest($1::uuid[], $2::text[], $3::timestamptz[]) as n (id, why, until)
         where task.id = n.id and task.state = 'gated' and (task.waiting_for is distinct from n.why or n.until > now())",
        &ids,
        &why,
        until as _
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Takes up to `limit` heads of lanes, for one worker process: what is of `at_least` that priority.
///
/// # Errors
/// From Postgres.
#[allow(clippy::too_many_arguments, reason = "one statement's parameters")]
pub async fn claim(
    pool: &PgPool,
    worker: Uuid,
    kinds: &[String],
    limit: i64,
    at_least: Priority,
    lease: Duration,
    deadline: Duration,
) -> sqlx::Result<Vec<Claimed>> {
    sqlx::query_as!(
        Claimed,
        "with head as materialized (
             select id from task where state = 'ready' and kind = any($2) and priority <= $6
             order by priority, rank, run_after, id limit $3 for update skip locked)
         update task set state = 'running', attempt = attempt + 1, token = nextval('task_token'), worker = $1,
                lease_until = clock_timestamp() + make_interval(secs => $4),
                deadline_at = clock_timestamp() + make_interval(secs => $5),
                started_at = coalesce(started_at, clock_timestamp())
         from head where task.id = head.id
         returning task.id, kind, instance_id, payload, attempt, max_attempts, token as \"token!\", requested_by, reason, error, stop_reason,
                   act, rollout_type, traceparent",
        worker,
        kinds,
        limit,
        lease.as_secs_f64(),
        deadline.as_secs_f64(),
        at_least as i16
    )
    .fetch_all(pool)
    .await
}

/// What a heartbeat learned of one attempt.
#[derive(Debug)]
pub struct Beat {
    /// Which task.
    pub id: Uuid,
    /// Why it should stop, when somebody asked.
    pub stop_reason: Option<String>,
}

/// Renews leases. Attempts that are missing from the answer have been lost.
///
/// # Errors
/// From Postgres.
pub async fn heartbeat(
    pool: &PgPool,
    ids: &[Uuid],
    tokens: &[i64],
    lease: Duration,
) -> sqlx::Result<Vec<Beat>> {
    sqlx::query_as!(
        Beat,
        "update task set lease_until = clock_timestamp() + make_interval(secs => $3)
         from unnest($1::uuid[], $2::bigint[]) as held (id, token)
         where task.id = held.id and task.token = held.token returning task.id, stop_reason",
        ids,
        tokens,
        lease.as_secs_f64()
    )
    .fetch_all(pool)
    .await
}

/// Whether the attempt still holds its task; locks the task for the transaction when it does.
///
/// # Errors
/// From Postgres.
pub async fn hold(db: &mut PgConnection, id: Uuid, token: i64) -> sqlx::Result<bool> {
    Ok(held(db, id, token).await?.is_some())
}

/// As [`hold`], and why the attempt was asked to stop, if it was. None when the lease is lost.
///
/// # Errors
/// From Postgres.
pub async fn held(db: &mut PgConnection, id: Uuid, token: i64) -> sqlx::Result<Option<Beat>> {
    sqlx::query_as!(
        Beat,
        "select id, stop_reason from task where id = $1 and token = $2 for update",
        id,
        token
    )
    .fetch_optional(db)
    .await
}

/// The payload as it is now: an upgrade's target is written when it starts.
///
/// # Errors
/// From Postgres.
pub async fn payload(db: &mut PgConnection, id: Uuid, token: i64) -> sqlx::Result<Option<Value>> {
    sqlx::query_scalar!(
        "select payload from task where id = $1 and token = $2",
        id,
        token
    )
    .fetch_optional(db)
    .await
}

/// Forgets a target that was not gone to. Fenced.
///
/// # Errors
/// From Postgres.
pub async fn clear_payload(db: &mut PgConnection, id: Uuid, token: i64) -> sqlx::Result<()> {
    sqlx::query!(
        "update task set payload = '{}' where id = $1 and token = $2",
        id,
        token
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Ends an attempt's task and settles its lane. False when the lease was lost: then nothing has changed. The lane must be locked.
///
/// # Errors
/// From Postgres.
pub async fn finish(
    db: &mut PgConnection,
    task: &Claimed,
    outcome: Outcome,
    error: Option<&str>,
) -> sqlx::Result<bool> {
    let ended = sqlx::query!(
        "with gone as (delete from task where id = $1 and token = $2 returning *)
         insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason,
                                   requested_by, traceparent, error, created_at, started_at, finished_at)
         select id, kind, instance_id, team_id, $3, run_after, attempt, max_attempts, payload, reason,
                requested_by, traceparent, $4, created_at, started_at, clock_timestamp() from gone",
        task.id,
        task.token,
        outcome.as_str(),
        error
    )
    .execute(&mut *db)
    .await?;
    settle(db, &[task.instance_id]).await?;
    Ok(ended.rows_affected() == 1)
}

/// Ends many attempts' tasks at once, in a fixed number of statements, for work that writes nothing of its own. Returns how many
/// were still held; the others' leases were lost, and nothing of theirs has changed.
///
/// # Errors
/// From Postgres.
pub async fn finish_many(pool: &PgPool, tasks: &[Claimed], outcome: Outcome) -> sqlx::Result<u64> {
    let lanes: Vec<Uuid> = tasks.iter().map(|t| t.instance_id).collect();
    let mut tx = pool.begin().await?;
    lock_lanes(&mut tx, &lanes).await?;
    let ended = sqlx::query!(
        "with gone as (delete from task using unnest($1::uuid[], $2::bigint[]) as held (id, token)
                       where task.id = held.id and task.token = held.token returning task.*)
         insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason,
                                   requested_by, traceparent, error, created_at, started_at, finished_at)
         select id, kind, instance_id, team_id, $3, run_after, attempt, max_attempts, payload, reason,
                requested_by, traceparent, null, created_at, started_at, clock_timestamp() from gone",
        &tasks.iter().map(|t| t.id).collect::<Vec<_>>(),
        &tasks.iter().map(|t| t.token).collect::<Vec<_>>(),
        outcome.as_str()
    )
    .execute(&mut *tx)
    .await?;
    settle(&mut tx, &lanes).await?;
    tx.commit().await?;
    Ok(ended.rows_affected())
}

/// Puts an attempt's task back. Meets it a waiting one of its kind, it merges into that and ends `superseded`. False when the
/// lease was lost. The lane must be locked.
///
/// # Errors
/// From Postgres.
pub async fn give_back(db: &mut PgConnection, task: &Claimed, how: &Return) -> sqlx::Result<bool> {
    let twin = sqlx::query_scalar!(
        "select id from task where instance_id = $1 and kind = $2 and state <> 'running'",
        task.instance_id,
        task.kind
    )
    .fetch_optional(&mut *db)
    .await?;
    if twin.is_some() {
        let error = match how {
            Return::Retry { error, .. } | Return::Wait { error, .. } => Some(error.as_str()),
            Return::GiveBack | Return::Gate { .. } => None,
        };
        return finish(db, task, Outcome::Superseded, error).await;
    }
    let (pause, punished, waiting, error) = match how {
        Return::Retry { error, pause } => (*pause, true, None, Some(error)),
        Return::Wait { what, error, pause } => (*pause, false, Some(what), Some(error)),
        Return::GiveBack => (Duration::ZERO, false, None, None),
        Return::Gate { why, until } => return gate(db, task, why, *until).await,
    };
    let back = sqlx::query!(
        "update task set state = case when $3::double precision > 0 then 'parked' else 'blocked' end,
                run_after = now() + make_interval(secs => $3),
                attempt = case when $4 then attempt else greatest(attempt - 1, 0) end,
                waiting_for = $5, waiting_since = case when $5::text is null then null else coalesce(waiting_since, now()) end,
                error = coalesce($6, error), token = null, worker = null, lease_until = null, deadline_at = null
         where id = $1 and token = $2",
        task.id,
        task.token,
        pause.as_secs_f64(),
        punished,
        waiting,
        error
    )
    .execute(&mut *db)
    .await?;
    settle(db, &[task.instance_id]).await?;
    Ok(back.rows_affected() == 1)
}

async fn gate(
    db: &mut PgConnection,
    task: &Claimed,
    why: &str,
    until: Option<Timestamp>,
) -> sqlx::Result<bool> {
    let back = sqlx::query!(
        "update task set state = case when $3::timestamptz > now() then 'parked' when rollout_type is null then 'blocked' else 'gated' end,
                slot_since = case when $3::timestamptz > now() then null else slot_since end,
                run_after = coalesce($3, now()), attempt = greatest(attempt - 1, 0), waiting_for = $4,
                waiting_since = coalesce(waiting_since, now()), token = null, worker = null, lease_until = null, deadline_at = null
         where id = $1 and token = $2",
        task.id,
        task.token,
        until.map(Timestamptz::from) as Option<Timestamptz>,
        why
    )
    .execute(&mut *db)
    .await?;
    settle(db, &[task.instance_id]).await?;
    Ok(back.rows_affected() == 1)
}

/// Cancels what waits for an instance, except tasks of kind `except`, and asks what runs to stop. Locks the lane.
///
/// # Errors
/// From Postgres.
pub async fn overtake(
    db: &mut PgConnection,
    instance: Uuid,
    except: &str,
    reason: &str,
) -> sqlx::Result<()> {
    overtake_many(db, &[instance], except, reason).await
}

/// As [`overtake`], for many. Locks the lanes.
///
/// # Errors
/// From Postgres.
pub async fn overtake_many(
    db: &mut PgConnection,
    instances: &[Uuid],
    except: &str,
    reason: &str,
) -> sqlx::Result<()> {
    lock_lanes(db, instances).await?;
    sqlx::query!(
        "with gone as (delete from task where instance_id = any($1) and kind <> $2 and state <> 'running' returning *)
         insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason,
                                   requested_by, traceparent, error, created_at, started_at, finished_at)
         select id, kind, instance_id, team_id, 'cancelled', run_after, attempt, max_attempts, payload, reason,
                requested_by, traceparent, $3, created_at, started_at, clock_timestamp() from gone",
        instances,
        except,
        reason
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "update task set stop_reason = $3 where instance_id = any($1) and kind <> $2 and state = 'running'",
        instances,
        except,
        reason
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Makes what has come due ready. Returns how many heads were found.
///
/// # Errors
/// From Postgres.
pub async fn promote_due(pool: &PgPool) -> sqlx::Result<u64> {
    let mut promoted = 0;
    loop {
        let instances = sqlx::query_scalar!(
            "select distinct instance_id from (select instance_id from task where state = 'parked' and run_after <= now()
             order by run_after limit 500) due"
        )
        .fetch_all(pool)
        .await?;
        if instances.is_empty() {
            return Ok(promoted);
        }
        let mut tx = pool.begin().await?;
        lock_lanes(&mut tx, &instances).await?;
        sqlx::query!(
            "update task set state = case when rollout_type is null then 'blocked' else 'gated' end
             where instance_id = any($1) and state = 'parked' and run_after <= now()",
            &instances
        )
        .execute(&mut *tx)
        .await?;
        promoted += settle(&mut tx, &instances).await?;
        tx.commit().await?;
    }
}

/// Promotes lanes that wait without a head. There should be none; the caller counts them.
///
/// # Errors
/// From Postgres.
pub async fn promote_headless(pool: &PgPool) -> sqlx::Result<u64> {
    let instances = sqlx::query_scalar!(
        "select distinct instance_id from task t where state = 'blocked'
           and not exists (select from task r where r.instance_id = t.instance_id and r.state in ('ready', 'running')) limit 500"
    )
    .fetch_all(pool)
    .await?;
    if instances.is_empty() {
        return Ok(0);
    }
    let mut tx = pool.begin().await?;
    lock_lanes(&mut tx, &instances).await?;
    let promoted = settle(&mut tx, &instances).await?;
    tx.commit().await?;
    Ok(promoted)
}

/// Frees tasks whose worker has been silent for longer than lease and grace, or is past its deadline. Fenced: the old
/// attempt's token is void from here on.
///
/// # Errors
/// From Postgres.
pub async fn free_expired(pool: &PgPool, grace: Duration) -> sqlx::Result<u64> {
    let lost = sqlx::query!(
        "select instance_id from task where state = 'running'
           and least(lease_until, deadline_at) + make_interval(secs => $1) < clock_timestamp() limit 500",
        grace.as_secs_f64()
    )
    .fetch_all(pool)
    .await?;
    if lost.is_empty() {
        return Ok(0);
    }
    let instances: Vec<Uuid> = lost.into_iter().map(|r| r.instance_id).collect();
    let mut tx = pool.begin().await?;
    lock_lanes(&mut tx, &instances).await?;
    // One of its kind that waits already takes its place.
    let merged = sqlx::query!(
        "with gone as (delete from task t where instance_id = any($1) and state = 'running'
              and least(lease_until, deadline_at) + make_interval(secs => $2) < clock_timestamp()
              and exists (select from task w where w.instance_id = t.instance_id and w.kind = t.kind and w.state <> 'running') returning *)
         insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason,
                                   requested_by, traceparent, error, created_at, started_at, finished_at)
         select id, kind, instance_id, team_id, 'superseded', run_after, attempt, max_attempts, payload, reason,
                requested_by, traceparent, 'its worker was lost', created_at, started_at, clock_timestamp() from gone",
        &instances,
        grace.as_secs_f64()
    )
    .execute(&mut *tx)
    .await?;
    let freed = sqlx::query!(
        "update task set state = 'blocked', token = null, worker = null, lease_until = null, deadline_at = null,
                error = 'its worker was lost'
         where instance_id = any($1) and state = 'running'
           and least(lease_until, deadline_at) + make_interval(secs => $2) < clock_timestamp()",
        &instances,
        grace.as_secs_f64()
    )
    .execute(&mut *tx)
    .await?;
    settle(&mut tx, &instances).await?;
    tx.commit().await?;
    Ok(merged.rows_affected() + freed.rows_affected())
}

/// Makes the history's partitions for this month and two ahead.
///
/// # Errors
/// From Postgres.
pub async fn ensure_partitions(pool: &PgPool) -> sqlx::Result<()> {
    let months = sqlx::query!(
        r#"select to_char(m, 'YYYY_MM') as "name!", to_char(m, 'YYYY-MM-DD') as "from!", to_char(m + interval '1 month', 'YYYY-MM-DD') as "to!"
           from generate_series(date_trunc('month', now() at time zone 'UTC'), date_trunc('month', now() at time zone 'UTC') + interval '2 months', interval '1 month') m
           where to_regclass('task_history_' || to_char(m, 'YYYY_MM')) is null"#
    )
    .fetch_all(pool)
    .await?;
    for month in months {
        let ddl = format!(
            "create table if not exists task_history_{} partition of task_history for values from ('{} 00:00+00') to ('{} 00:00+00')",
            month.name, month.from, month.to
        );
        sqlx::query(sqlx::AssertSqlSafe(ddl)).execute(pool).await?;
    }
    Ok(())
}

/// Drops the history's partitions that ended before the last `months` months, and what the logs and steps of their tasks kept.
///
/// # Errors
/// From Postgres.
pub async fn drop_old_partitions(pool: &PgPool, months: i32) -> sqlx::Result<()> {
    let old = sqlx::query_scalar!(
        r#"select c.relname as "name!" from pg_inherits i join pg_class c on c.oid = i.inhrelid
           where i.inhparent = 'task_history'::regclass and c.relname ~ '^task_history_[0-9]{4}_[0-9]{2}$'
             and right(c.relname, 7) < to_char(now() at time zone 'UTC' - make_interval(months => $1), 'YYYY_MM')"#,
        months
    )
    .fetch_all(pool)
    .await?;
    for name in old {
        for kept in ["task_step", "task_log"] {
            let sql = format!("delete from {kept} where task_id in (select id from {name})");
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(pool).await?;
        }
        sqlx::query(sqlx::AssertSqlSafe(format!("drop table {name}")))
            .execute(pool)
            .await?;
    }
    Ok(())
}

/// Wakes workers of every process. After the commit of what they should see, and without waiting for the disk.
///
/// # Errors
/// From Postgres.
pub async fn notify(pool: &PgPool, channel: &str, payloads: &[String]) -> sqlx::Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query!("set local synchronous_commit = off")
        .execute(&mut *tx)
        .await?;
    sqlx::query!(
        "select pg_notify($1, p) from unnest($2::text[]) p",
        channel,
        payloads
    )
    .fetch_all(&mut *tx)
    .await?;
    tx.commit().await
}

/// Takes back an upgrade that the machine scheduled and that has not started. The lane must be locked.
///
/// # Errors
/// From Postgres.
pub async fn drop_machine_upgrade(
    db: &mut PgConnection,
    instance: Uuid,
    reason: &str,
) -> sqlx::Result<()> {
    let waiting = sqlx::query_scalar!(
        "select id from task where instance_id = $1 and act = 'upgrade' and state <> 'running' and slot_since is null",
        instance
    )
    .fetch_all(&mut *db)
    .await?;
    for id in waiting {
        cancel(db, instance, id, reason).await?;
    }
    Ok(())
}

/// The act of a task that waits or runs, and whether anything else does for its instance. The lane must be locked.
///
/// # Errors
/// From Postgres.
pub async fn look(db: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<(Option<String>, bool)>> {
    let row = sqlx::query!(
        r#"select act, exists (select from task o where o.instance_id = t.instance_id and o.id <> t.id) as "others!" from task t where id = $1"#,
        id
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|r| (r.act, r.others)))
}

/// What became of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It waited, and has ended.
    Ended,
    /// It runs, and was asked to stop.
    Asked,
    /// It had ended before.
    TooLate,
}

/// Cancels one task: ends it when it waits, asks it to stop when it runs. Locks the lane.
///
/// # Errors
/// From Postgres.
pub async fn cancel(
    db: &mut PgConnection,
    instance: Uuid,
    id: Uuid,
    reason: &str,
) -> sqlx::Result<Cancelled> {
    lock_lanes(db, &[instance]).await?;
    let ended = sqlx::query!(
        "with gone as (delete from task where id = $1 and state <> 'running' returning *)
         insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason,
                                   requested_by, traceparent, error, created_at, started_at, finished_at)
         select id, kind, instance_id, team_id, 'cancelled', run_after, attempt, max_attempts, payload, reason,
                requested_by, traceparent, $2, created_at, started_at, clock_timestamp() from gone",
        id,
        reason
    )
    .execute(&mut *db)
    .await?;
    let asked = sqlx::query!(
        "update task set stop_reason = $2 where id = $1 and state = 'running'",
        id,
        reason
    )
    .execute(&mut *db)
    .await?;
    settle(db, &[instance]).await?;
    Ok(match (ended.rows_affected(), asked.rows_affected()) {
        (1, _) => Cancelled::Ended,
        (_, 1) => Cancelled::Asked,
        _ => Cancelled::TooLate,
    })
}

/// Whether a task of one of these kinds waits or runs for the instance; an upgrade of the machine's own that has not started does not
/// count, since what a person asks takes its place. Its lane must be locked.
///
/// # Errors
/// From Postgres.
pub async fn has_open(db: &mut PgConnection, instance: Uuid, kinds: &[&str]) -> sqlx::Result<bool> {
    let kinds: Vec<String> = kinds.iter().map(|k| (*k).to_owned()).collect();
    sqlx::query_scalar!(
        r#"select exists (select from task where instance_id = $1 and kind = any($2)
                           and not (act is not distinct from 'upgrade' and slot_since is null and state <> 'running')) as "is!""#,
        instance,
        &kinds
    )
    .fetch_one(db)
    .await
}
