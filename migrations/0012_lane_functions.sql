-- What every task goes through, in one call each: a statement of its own for every step, so that what was enqueued before a lane's lock
-- was had is seen. Their plans are made once: with the real parameters Postgres would plan each call anew, which takes longer than the
-- call. No plan that is made while the tables are small may read them whole later.

-- Takes up to `most` heads of lanes for one worker process.
create function claim_tasks(worker uuid, kinds text[], most bigint, lease_s double precision, deadline_s double precision, at_least smallint)
returns setof task language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    return query
        update task t set state = 'running', attempt = t.attempt + 1, token = nextval('task_token'), worker = $1,
               lease_until = clock_timestamp() + make_interval(secs => $4),
               deadline_at = clock_timestamp() + make_interval(secs => $5),
               started_at = coalesce(t.started_at, clock_timestamp())
        where t.id = any(array(
            select h.id from task h where h.state = 'ready' and h.kind = any($2) and h.priority <= $6
            order by h.priority, h.rank, h.run_after, h.id limit $3 for update skip locked))
        returning t.*;
end
$$;

-- Gives every lane without a head its best due task. The lanes must be locked. Rank: the share its team has already (counted to 200),
-- so that one team's many never stand before another's first.
create function promote_lanes(lanes uuid[])
returns bigint language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    promoted bigint;
begin
    with head as (
        select distinct on (t.instance_id) t.id, t.team_id from task t
        where t.instance_id = any($1) and t.state = 'blocked'
          and not exists (select from task r where r.instance_id = t.instance_id and r.state in ('ready', 'running'))
        order by t.instance_id, t.priority, t.run_after, t.id),
    share as (
        select h.team_id, (select count(*) from (select from task o where o.team_id = h.team_id and o.state in ('ready', 'running') limit 200) x) as held
        from (select distinct team_id from head) h),
    ranked as (
        select head.id, coalesce(share.held, 0) + row_number() over (partition by head.team_id order by head.id) - 1 as rank
        from head left join share using (team_id))
    update task set state = 'ready', rank = ranked.rank::int from ranked where task.id = ranked.id;
    get diagnostics promoted = row_count;
    return promoted;
end
$$;

-- Ends attempts' tasks: deletes those that are still held by these tokens, keeps them as history, settles their lanes. The number
-- that were held; of the others nothing has changed.
create function end_tasks(lanes uuid[], ids uuid[], tokens bigint[], outcome text, error text)
returns bigint language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    ended  bigint;
    waited uuid[];
begin
    perform from instance where id = any($1) order by id for no key update;
    with gone as (
        delete from task using unnest($2, $3) as held (id, token) where task.id = held.id and task.token = held.token returning task.*)
    insert into task_history (id, kind, instance_id, team_id, outcome, run_after, attempt, max_attempts, payload, reason,
                              requested_by, traceparent, error, created_at, started_at, finished_at)
    select g.id, g.kind, g.instance_id, g.team_id, $4, g.run_after, g.attempt, g.max_attempts, g.payload, g.reason,
           g.requested_by, g.traceparent, $5, g.created_at, g.started_at, clock_timestamp() from gone g;
    get diagnostics ended = row_count;
    waited := array(select distinct t.instance_id from task t where t.instance_id = any($1) and t.state = 'blocked');
    if waited <> '{}' then
        perform promote_lanes(waited);
    end if;
    return ended;
end
$$;
