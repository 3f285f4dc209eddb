-- `paused()` cannot be inlined: called once an instance it took half a millisecond each. As a set it becomes part of the plan.

create function pauses_of(instance_id uuid, team_id uuid, service_type text) returns table (words text) language sql stable as $$
    select 'paused' || case p.scope when 'instance' then '' when 'team' then ' (the whole team)' when 'type' then ' (every ' || p.service_type || ')'
                                    else ' (everything)' end
           || ' by ' || p.paused_by || coalesce(' until ' || to_char(p.until at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"'), '') || ': ' || p.reason
    from pause p
    where (p.until is null or p.until > now())
      and (p.scope = 'all' or p.instance_id = $1 or p.team_id = $2 or p.service_type = $3)
    order by p.until desc nulls first, p.scope limit 1
$$;

create or replace view standing as
select i.id as instance_id, i.team_id, t.slug as team, i.name, i.service_type, i.kind, i.state, i.created_at, i.maintenance_window,
       i.entry_revision_id, r.chart_version, c.id as target_id, c.chart_version as target_version,
       coalesce((c.spec ->> 'security')::boolean, false) as security,
       case when i.pin_until > now() then i.pin_until end as pin_until,
       i.pin_reason, i.pin_by,
       case when i.hold_target is null or i.hold_target is not distinct from c.id then i.hold_kind end as hold_kind,
       i.hold_reason, i.hold_since,
       z.words as paused,
       ro.rollout_state, ro.reason, ro.changed_by, ro.since, ro.max_in_flight,
       ga.rollout_state as all_state, ga.reason as all_reason, ga.changed_by as all_by, ga.since as all_since,
       o.verdict, o.sentence,
       k.id as task_id, k.state as task_state, k.run_after, k.act, k.rollout_type, k.priority, k.slot_since, k.waiting_for
from instance i
join team t on t.id = i.team_id
join entry_revision r on r.id = i.entry_revision_id
left join catalog_item ci on ci.catalog_revision_id = (select max(id) from catalog_revision) and ci.service_type = i.service_type
left join entry_revision c on c.id = ci.entry_revision_id
left join rollout ro on ro.service_type = i.service_type
left join rollout ga on ga.service_type = '*'
left join instance_observed o on o.instance_id = i.id
left join lateral pauses_of(i.id, i.team_id, i.service_type) z on true
left join lateral (
    select * from task u where u.instance_id = i.id and u.kind = 'upgrade' order by u.state = 'running' desc limit 1
) k on true;
