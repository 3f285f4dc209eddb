-- The catalog as published: numbered revisions that point to immutable entry revisions.

create table entry_revision (
    id            uuid primary key,
    service_type  text not null,
    kind          text not null check (kind in ('helm', 'service_definition')),
    chart_version text not null,
    -- SHA-256 over spec and chart. Changed content under an unchanged version is refused at load, and here.
    digest        bytea not null,
    spec          jsonb not null,
    -- The packed chart itself, so that a repair never depends on a folder or a repository.
    chart         bytea check (octet_length(chart) <= 1048576),
    created_at    timestamptz not null default now(),
    unique (service_type, chart_version)
);

create table catalog_revision (
    id           bigint generated always as identity primary key,
    digest       bytea not null,
    published_at timestamptz not null default now()
);

create table catalog_item (
    catalog_revision_id bigint not null references catalog_revision (id) on delete cascade,
    service_type        text not null,
    entry_revision_id   uuid not null references entry_revision (id),
    primary key (catalog_revision_id, service_type)
);

-- Why the newest edit is not served; no row when it is.
create table catalog_fault (
    only_row boolean primary key default true check (only_row),
    message  text not null,
    since    timestamptz not null default now()
);

create table rollout (
    service_type text primary key,
    state        text not null default 'active' check (state in ('active', 'halted')),
    reason       text,
    changed_by   text,
    since        timestamptz not null default now()
);
