//! Asking for tasks, and letting gated ones in.

use super::{
    super::Timestamptz,
    lanes::{demote, lock_lanes, promote, settle},
};
use jiff::Timestamp;
use serde_json::Value;
use sqlx::PgConnection;
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
           returning id, (xmax = 0) as "created!",
                     exists (select from task h where h.instance_id = $3 and h.state in ('ready', 'running')) as "headed!""#,
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
    // Alone in its lane: there is nobody to overtake.
    if row.headed {
        demote(db, &[new.instance_id]).await?;
    }
    promote(db, &[new.instance_id]).await?;
    Ok(Enqueued {
        id: row.id,
        created: row.created,
    })
}

/// Asks for many tasks at once, in a fixed number of statements. Where one of its kind waits already nothing is asked, nor of an instance
/// that a person has removed since it was looked at, except for its removal. Returns instance and task of those that were created. Locks
/// the lanes.
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
         select n.id, n.kind, instance_id, n.team_id,
                case when run_after > now() then 'parked' when rollout_type is not null then 'gated' else 'blocked' end,
                priority, coalesce(run_after, now()), max_attempts, payload, reason, requested_by, $12, act, rollout_type
         from unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::smallint[], $6::timestamptz[], $7::int[], $8::jsonb[], $9::text[],
                     $10::text[], $11::text[], $13::text[])
              as n (id, kind, instance_id, team_id, priority, run_after, max_attempts, payload, reason, requested_by, act, rollout_type)
              join instance i on i.id = n.instance_id
         where n.kind = 'deprovision' or i.state not in ('deleting', 'deleted')
         order by n.id
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
                run_after = coalesce(n.until, run_after), state = case when n.until > now() then 'parked' else 'gated' end
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

/// Whether a task of that kind runs for the instance, or is due. Its lane must be locked.
///
/// # Errors
/// From Postgres.
pub async fn under_way(db: &mut PgConnection, instance: Uuid, kind: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (select from task where instance_id = $1 and kind = $2 and (state = 'running' or run_after <= now())) as "is!""#,
        instance,
        kind
    )
    .fetch_one(db)
    .await
}

/// Whether a task of that kind has failed for good for the instance.
///
/// # Errors
/// From Postgres.
pub async fn has_failed(db: &mut PgConnection, instance: Uuid, kind: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (select from task_history where instance_id = $1 and kind = $2 and outcome = 'failed') as "has!""#,
        instance,
        kind
    )
    .fetch_one(db)
    .await
}

/// What the newest ended task of that kind was to do, unless it did it.
///
/// # Errors
/// From Postgres.
pub async fn undone(
    db: &mut PgConnection,
    instance: Uuid,
    kind: &str,
) -> sqlx::Result<Option<Value>> {
    let newest = sqlx::query!(
        "select payload, outcome from task_history where instance_id = $1 and kind = $2 order by finished_at desc limit 1",
        instance,
        kind
    )
    .fetch_optional(db)
    .await?;
    Ok(newest
        .filter(|t| t.outcome != "succeeded")
        .map(|t| t.payload))
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
