-- Day-2 rollouts: what may start, and why not yet.

alter table rollout rename column state to rollout_state;
-- What the type is being moved to. Decided once per target: a person's resume stands until the catalog moves on.
alter table rollout add column target_revision_id uuid references entry_revision (id);
-- The halt of everything, in the same table, so that one lock order serves both.
insert into rollout (service_type) values ('*');

-- `act` is the row of `may_act`'s table. `rollout_type` marks an upgrade that halts, caps and windows speak of; it holds a slot of
-- its type from its first start (`slot_since`) until it has ended.
alter table task add column act text;
alter table task add column rollout_type text;
alter table task add column slot_since timestamptz;
create index task_rollout on task (rollout_type) where rollout_type is not null;
create index task_by_team on task (team_id) where state in ('ready', 'running');

-- A pin is a person's, and ends by itself. A hold is svcforge's: it ends when the catalog moves on from `hold_target`, or by a person.
alter table instance add column pin_until timestamptz;
alter table instance add column pin_reason text;
alter table instance add column pin_by text;
alter table instance add column hold_kind text check (hold_kind in ('changed', 'rollback', 'not_sticking'));
alter table instance add column hold_reason text;
alter table instance add column hold_since timestamptz;
alter table instance add column hold_target uuid references entry_revision (id);
create index instance_outdated on instance (service_type, entry_revision_id) where state = 'ready';

-- Stops all that svcforge does by itself there, not what people ask.
create table pause (
    id           uuid primary key,
    scope        text not null check (scope in ('instance', 'team', 'type', 'all')),
    instance_id  uuid references instance (id),
    team_id      uuid references team (id),
    service_type text,
    reason       text not null check (reason <> ''),
    paused_by    text not null,
    since        timestamptz not null default now(),
    until        timestamptz,
    check ((scope = 'instance') = (instance_id is not null)),
    check ((scope = 'team') = (team_id is not null)),
    check ((scope = 'type') = (service_type is not null))
);
create unique index pause_scope on pause (scope, coalesce(instance_id::text, team_id::text, service_type, ''));

-- The pause of an instance that lasts longest, if any: asked by claim, tick, API and portal alike.
create function paused(instance_id uuid, team_id uuid, service_type text) returns text language sql stable as $$
    select 'paused' || case p.scope when 'instance' then '' when 'team' then ' (the whole team)' when 'type' then ' (every ' || p.service_type || ')'
                                    else ' (everything)' end
           || ' by ' || p.paused_by || coalesce(' until ' || to_char(p.until at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"'), '') || ': ' || p.reason
    from pause p
    where (p.until is null or p.until > now())
      and (p.scope = 'all' or p.instance_id = $1 or p.team_id = $2 or p.service_type = $3)
    order by p.until desc nulls first, p.scope limit 1
$$;

-- The effective cap, written by the leader's tick: workers that ask at the claim read it here.
alter table rollout add column max_in_flight integer not null default 1 check (max_in_flight > 0);

-- Where every instance stands towards the catalog: what version_drift, admission, claim, API and portal all read.
create view standing as
select i.id as instance_id, i.team_id, t.slug as team, i.name, i.service_type, i.kind, i.state, i.created_at, i.maintenance_window,
       i.entry_revision_id, r.chart_version, c.id as target_id, c.chart_version as target_version,
       coalesce((c.spec ->> 'security')::boolean, false) as security,
       case when i.pin_until > now() then i.pin_until end as pin_until,
       i.pin_reason, i.pin_by,
       case when i.hold_target is null or i.hold_target is not distinct from c.id then i.hold_kind end as hold_kind,
       i.hold_reason, i.hold_since,
       paused(i.id, i.team_id, i.service_type) as paused,
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
left join lateral (
    select * from task u where u.instance_id = i.id and u.kind = 'upgrade' order by u.state = 'running' desc limit 1
) k on true;

-- What an instance has run: one row each time an attempt ended well with another revision or other parameters.
create table instance_revision (
    id                bigint generated always as identity primary key,
    instance_id       uuid not null references instance (id),
    entry_revision_id uuid not null references entry_revision (id),
    parameters        jsonb not null,
    task_id           uuid,
    at                timestamptz not null default now()
);
create index instance_revision_newest on instance_revision (instance_id, id desc);
insert into instance_revision (instance_id, entry_revision_id, parameters)
select id, entry_revision_id, parameters from instance where state in ('ready', 'upgrading', 'failed') order by created_at;

-- What is left to remove by itself, for the ttl check.
create index instance_deleting on instance (id) where state = 'deleting';
