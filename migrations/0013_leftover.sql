-- What removed services leave in the cluster because their entries (`on_delete: keep Nd`) or their charts (`helm.sh/resource-policy: keep`)
-- say so: recorded before the removal, shown when the instance is deleted. svcforge looks whether it is still there, and never removes it.
create table leftover (
    id           uuid primary key,
    instance_id  uuid not null references instance (id),
    kind         text not null,
    namespace    text not null,
    name         text not null,
    -- Another object of the name is another one.
    uid          text not null,
    kept_at      timestamptz not null default now(),
    -- Nobody should remove it before; the chart's word has no end.
    keep_until   timestamptz,
    last_seen_at timestamptz not null default now(),
    -- When it was last looked for, whatever came of it.
    looked_at    timestamptz not null default now(),
    -- Looked for and not found any more.
    gone_at      timestamptz,
    unique (uid)
);
create index leftover_looked on leftover (looked_at) where gone_at is null;
create index leftover_of on leftover (instance_id);
