-- Outbox: written where something happened, sent later, never in the way of a check.
create table notification (
    id          uuid primary key,
    kind        text not null,
    payload     jsonb not null,
    created_at  timestamptz not null default now()
);
create table notification_delivery (
    notification_id uuid not null references notification (id) on delete cascade,
    sink            text not null,
    attempt         integer not null default 0,
    next_at         timestamptz not null default now(),
    delivered_at    timestamptz,
    given_up_at     timestamptz,
    error           text,
    primary key (notification_id, sink)
);
create index notification_open on notification_delivery (next_at) where delivered_at is null and given_up_at is null;

-- Where the leader sends: what workers that write a note need to know.
create table notification_sink (sink text primary key);
insert into notification_sink (sink) values ('log');
