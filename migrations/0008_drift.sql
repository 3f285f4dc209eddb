-- What the cluster shows of what was installed.

-- Only what is not as it should be: no row means present, as of the newest sweep.
create table instance_drift (
    instance_id uuid primary key references instance (id),
    verdict     text not null check (verdict in ('gone', 'changed', 'unknown')),
    detail      text not null,
    revision    integer,
    since       timestamptz not null default now()
);

-- The newest sweep that read the cluster.
create table drift_sweep (
    only_row boolean primary key default true check (only_row),
    -- When it last succeeded.
    at       timestamptz,
    error    text
);

-- Every re-provision that drift asked for: what both brakes count.
create table drift_repair (
    id          bigint generated always as identity primary key,
    instance_id uuid not null references instance (id),
    at          timestamptz not null default now(),
    -- Covered by an admin's release: it does not use the hour's budget up.
    released    boolean not null default false
);
create index drift_repair_at on drift_repair (at);
create index drift_repair_instance on drift_repair (instance_id, at);

-- The brake on repairs. Open while more is gone than an hour may repair; an admin's release covers the list that was shown.
create table drift_brake (
    only_row    boolean primary key default true check (only_row),
    since       timestamptz not null,
    reason      text not null,
    asked       uuid[] not null,
    released_by text,
    released_at timestamptz,
    release_reason text
);

-- Releases that the database knows nothing of. Never deleted by svcforge: one query against one database is not evidence.
create table orphan (
    id            uuid primary key,
    kind          text not null check (kind in ('orphan', 'foreign', 'unmanaged')),
    release       text not null,
    namespace     text not null,
    owner         text not null default '',
    status        text not null default 'open' check (status in ('open', 'ignored', 'adopted', 'removed')),
    status_by     text,
    status_at     timestamptz,
    status_reason text,
    first_seen_at timestamptz not null default now(),
    last_seen_at  timestamptz not null default now(),
    unique (namespace, release)
);

-- A release belongs to one living instance; one that a deleted row left behind may be adopted by another.
alter table instance drop constraint instance_release_namespace_release_name_key;
create unique index instance_release on instance (release_namespace, release_name) where state <> 'deleted';
