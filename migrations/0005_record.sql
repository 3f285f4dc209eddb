-- Who changed what, asked once, revealed once.

create table audit (
    id          bigint generated always as identity primary key,
    at          timestamptz not null default now(),
    actor       text not null,
    actor_id    uuid,
    via         text not null,
    action      text not null,
    target_kind text not null,
    target_id   text not null,
    detail      jsonb not null default '{}',
    request_id  text
);
create index audit_newest on audit (id desc);

-- An answer kept for a repeated POST, written in the transaction of its effect.
create table idempotency (
    user_id     uuid not null,
    key         text not null check (length(key) between 1 and 255),
    digest      bytea not null,
    -- Deferred: the key is taken before the instance's row, so that a twin waits here and not on the name.
    instance_id uuid not null references instance (id) deferrable initially deferred,
    created_at  timestamptz not null default now(),
    primary key (user_id, key)
);
create index idempotency_by_age on idempotency (created_at);

-- A reveal: the web leaves a public key, a worker answers with a box that only that web process can open.
create table reveal (
    id          uuid primary key,
    instance_id uuid not null references instance (id),
    public_key  bytea not null check (octet_length(public_key) = 32),
    sealed      bytea,
    error       text,
    expires_at  timestamptz not null
);
