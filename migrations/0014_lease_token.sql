-- A claim does not wait for the disk. What a crash of Postgres then forgets may include the sequence's last numbers: it would hand the
-- same one out again, for the same task, to somebody else, and the fence would let both through. A number that nobody can meet twice
-- does not depend on what was kept. Not negative: it is a label's value, too.
create or replace function claim_tasks(worker uuid, kinds text[], most bigint, lease_s double precision, deadline_s double precision, at_least smallint)
returns setof task language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    return query
        update task t set state = 'running', attempt = t.attempt + 1, worker = $1,
               token = uuid_hash_extended(gen_random_uuid(), 0) & 9223372036854775807,
               lease_until = clock_timestamp() + make_interval(secs => $4),
               deadline_at = clock_timestamp() + make_interval(secs => $5),
               started_at = coalesce(t.started_at, clock_timestamp())
        where t.id = any(array(
            select h.id from task h where h.state = 'ready' and h.kind = any($2) and h.priority <= $6
            order by h.priority, h.rank, h.run_after, h.id limit $3 for update skip locked))
        returning t.*;
end
$$;

drop sequence task_token;
