-- What the controller says of ServiceDefinitions and Workflows, as the observer saw it: the web has no rights in the cluster. Names of
-- environment variables and their values stay there.

create table definition_seen (
    namespace   text not null,
    name        text not null,
    owner       text,
    image       text not null,
    port        integer not null,
    replicas    integer not null,
    available   integer not null,
    ready       boolean not null,
    phase       text not null,
    message     text,
    workflow    text,
    -- From its labels; null for one that svcforge did not make.
    instance_id uuid,
    created_at  timestamptz not null,
    at          timestamptz not null default now(),
    primary key (namespace, name)
);

create table workflow_seen (
    namespace  text not null,
    name       text not null,
    ready      boolean not null,
    phase      text not null,
    progress   text not null,
    message    text,
    -- [{name, depends_on, ready, phase, message}], in the order of the spec.
    stages     jsonb not null,
    created_at timestamptz not null,
    at         timestamptz not null default now(),
    primary key (namespace, name)
);
