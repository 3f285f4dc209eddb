-- What teams own. The state machine is data, so that the domain's table and this one can be compared by a test.

create table instance_transition (
    from_state text not null,
    to_state   text not null,
    primary key (from_state, to_state)
);
insert into instance_transition (from_state, to_state) values
    ('requested', 'provisioning'), ('requested', 'failed'),
    ('provisioning', 'ready'), ('provisioning', 'failed'),
    ('ready', 'upgrading'), ('ready', 'provisioning'),
    ('upgrading', 'ready'), ('upgrading', 'failed'),
    ('failed', 'provisioning'), ('failed', 'upgrading'),
    ('requested', 'deleting'), ('provisioning', 'deleting'), ('ready', 'deleting'),
    ('upgrading', 'deleting'), ('failed', 'deleting'),
    ('deleting', 'deleted'), ('deleting', 'ready');

create table instance (
    id                 uuid primary key,
    team_id            uuid not null references team (id),
    service_type       text not null,
    kind               text not null check (kind in ('helm', 'service_definition')),
    name               text not null,
    state              text not null default 'requested'
        check (state in ('requested', 'provisioning', 'ready', 'upgrading', 'failed', 'deleting', 'deleted')),
    state_since        timestamptz not null default now(),
    entry_revision_id  uuid not null references entry_revision (id),
    release_name       text not null,
    release_namespace  text not null,
    -- The highest Helm revision that an attempt of ours recorded before it started Helm: what lets recovery tell our own
    -- dead attempt from a person at work.
    release_revision   integer,
    -- And that attempt's lease token, which its release record carries as a label.
    release_token      bigint,
    parameters         jsonb not null,
    maintenance_window text,
    expires_at         timestamptz,
    created_by         text not null,
    created_at         timestamptz not null default now(),
    updated_at         timestamptz not null default now(),
    last_error         text,
    version            bigint not null default 1,
    unique (release_namespace, release_name)
);
create unique index instance_name on instance (team_id, name) where state <> 'deleted';
create index instance_by_age on instance (created_at desc, id desc);
create index instance_by_team on instance (team_id, created_at desc, id desc);
create index instance_expiring on instance (expires_at) where expires_at is not null and state <> 'deleted';

create function instance_guard() returns trigger language plpgsql as $$
begin
    if new.state is distinct from old.state then
        if not exists (select from instance_transition where from_state = old.state and to_state = new.state) then
            raise exception 'an instance cannot go from % to %', old.state, new.state
                using errcode = 'check_violation', constraint = 'instance_transition';
        end if;
        new.state_since := now();
    end if;
    new.version := old.version + 1;
    new.updated_at := now();
    return new;
end $$;
create trigger instance_guard before update on instance for each row execute function instance_guard();

create table instance_event (
    id          bigint generated always as identity primary key,
    instance_id uuid not null references instance (id),
    at          timestamptz not null default now(),
    kind        text not null,
    actor       text not null,
    message     text not null,
    task_id     uuid,
    request_id  text
);
create index instance_event_newest on instance_event (instance_id, id desc);

-- What the observer saw; apart from `instance`, whose version counts what was asked.
create table instance_observed (
    instance_id uuid primary key references instance (id),
    verdict     text not null,
    sentence    text not null,
    parts       jsonb not null,
    at          timestamptz not null default now()
);

-- The objects that the newest release is made of, recorded when it was written: what readiness is the worst of.
create table instance_part (
    instance_id uuid not null references instance (id),
    kind        text not null,
    namespace   text not null,
    name        text not null,
    primary key (instance_id, kind, namespace, name)
);
create index instance_part_by_object on instance_part (kind, namespace, name);
