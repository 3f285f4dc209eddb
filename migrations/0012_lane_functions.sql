-- What ends a task and gives its lane the next one, in one call: a statement of its own each, so that what was enqueued before the
-- lane's lock was had is seen.

-- Gives every lane without a head its best due task. The lanes must be locked. Rank: the share its team has already (counted to 200),
-- so that one team's many never stand before another's first.
create function promote_lanes(lanes uuid[]) returns bigint language sql volatile as $$
    with head as (
        select distinct on (t.instance_id) t.id, t.team_id from task t
        where t.instance_id = any($1) and t.state = 'blocked'
          and not exists (select from task r where r.instance_id = t.instance_id and r.state in ('ready', 'running'))
        order by t.instance_id, t.priority, t.run_after, t.id),
    share as (
        select team_id, (select count(*) from (select from task o where o.team_id = h.team_id and o.state in ('ready', 'running') limit 200) x) as held
        from (select distinct team_id from head) h),
    ranked as (
        select head.id, coalesce(share.held, 0) + row_number() over (partition by head.team_id order by head.id) - 1 as rank
        from head left join share using (team_id)),
    promoted as (
        update task set state = 'ready', rank = ranked.rank::int from ranked where task.id = ranked.id returning 1)
    select count(*) from promoted
$$;

-- Ends attempts' tasks: deletes those that are still held by these tokens, keeps them as history, settles their lanes. The number
-- that were held; of the others nothing has changed.
create function end_tasks(lanes uuid[], ids uuid[], tokens bigint[], outcome text, error text) returns bigint language plpgsql volatile as $$
declare
    ended  bigint;
    waited uuid[];
begin
    perform from instance where id = any($1) order by id for no key update;
    with gone as (
        delete from task using unnest($2, $3) as held (id, token) where task.id = held.id and task.token = held.token returning task.*),
    kept as (
        insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason,
                                  requested_by, traceparent, error, created_at, started_at, finished_at)
        select g.id, g.kind, g.instance_id, g.team_id, $4, g.run_after, g.attempt, g.max_attempts, g.payload, g.reason,
               g.requested_by, g.traceparent, $5, g.created_at, g.started_at, clock_timestamp() from gone g)
    select count(*) into ended from gone;
    waited := array(select distinct t.instance_id from task t where t.instance_id = any($1) and t.state = 'blocked');
    if waited <> '{}' then
        perform promote_lanes(waited);
    end if;
    return ended;
end
$$;
