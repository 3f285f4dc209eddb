-- Who svcforge is, and who may use it.

-- One row. `incarnation` tells a restored database from the one that went on; `cluster_uid` binds the database to one
-- cluster (the UID of its kube-system namespace), so that a wrong kubeconfig can only ever read.
create table installation (
    only_row    boolean primary key default true check (only_row),
    id          uuid not null,
    incarnation uuid not null,
    cluster_uid text,
    created_at  timestamptz not null default now()
);

create table team (
    id         uuid primary key,
    slug       text not null unique check (slug ~ '^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$'),
    title      text not null,
    -- Fixed by the slug at the first request; nothing in the cluster is renamed later.
    namespace  text not null unique,
    created_at timestamptz not null default now()
);

create table app_user (
    id          uuid primary key,
    name        text not null unique,
    is_admin    boolean not null default false,
    disabled_at timestamptz,
    created_at  timestamptz not null default now()
);

create table membership (
    team_id uuid not null references team (id),
    user_id uuid not null references app_user (id),
    role    text not null check (role in ('viewer', 'member', 'owner')),
    primary key (team_id, user_id)
);
create index membership_by_user on membership (user_id);

-- `svcf_<id>_<secret>`; only the SHA-256 of the secret (256 random bits, so no slow hash) is kept.
create table api_token (
    id          text primary key,
    user_id     uuid not null references app_user (id),
    secret_hash bytea not null,
    label       text not null,
    expires_at  timestamptz,
    revoked_at  timestamptz,
    created_at  timestamptz not null default now()
);

-- One-time sign-in links; used by one `update … where used_at is null`.
create table signin_link (
    secret_hash bytea primary key,
    user_id     uuid not null references app_user (id),
    expires_at  timestamptz not null,
    used_at     timestamptz
);

-- tower-sessions' records. `user_id` stands beside the data so that disabling a user ends their sessions at once.
create table session (
    id         text primary key,
    user_id    uuid references app_user (id),
    data       jsonb not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null
);
create index session_by_expiry on session (expires_at);
