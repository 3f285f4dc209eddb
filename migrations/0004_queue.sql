-- The queue. Hot rows only: what has ended moves to task_history.
--
-- Inner states: parked (not due) · gated (an upgrade that is due, but may not start) · blocked (behind its instance's head)
-- · ready (a lane's head) · running. One lane per instance.

create sequence task_token;

create table task (
    id            uuid primary key,
    kind          text not null,
    instance_id   uuid not null references instance (id),
    team_id       uuid not null,
    state         text not null check (state in ('parked', 'gated', 'blocked', 'ready', 'running')),
    priority      smallint not null,
    rank          integer not null default 0,
    run_after     timestamptz not null,
    attempt       integer not null default 0,
    max_attempts  integer not null,
    payload       jsonb not null,
    reason        text not null,
    requested_by  text not null,
    traceparent   text,
    waiting_for   text,
    waiting_since timestamptz,
    error         text,
    -- The fence: every write of an attempt names its token.
    token         bigint,
    worker        uuid,
    -- In no index, so that a heartbeat stays a heap-only update.
    lease_until   timestamptz,
    deadline_at   timestamptz,
    stop_reason   text,
    created_at    timestamptz not null default now(),
    started_at    timestamptz,
    check ((state = 'running') = (token is not null))
) with (fillfactor = 70);

-- Q1: one running task an instance, and only a lane's head can be claimed.
create unique index task_lane on task (instance_id) where state in ('ready', 'running');
-- Q2: one waiting task an instance and kind.
create unique index task_waiting on task (instance_id, kind) where state <> 'running';
create index task_claim on task (priority, rank, run_after, id) where state = 'ready';
create index task_due on task (run_after) where state = 'parked';
create index task_leased on task (id) where state = 'running';
create index task_by_instance on task (instance_id);

create table task_history (
    id            uuid not null,
    kind          text not null,
    instance_id   uuid not null,
    team_id       uuid not null,
    outcome       text not null check (outcome in ('succeeded', 'failed', 'cancelled', 'superseded')),
    run_after     timestamptz not null,
    attempt       integer not null,
    max_attempts  integer not null,
    payload       jsonb not null,
    reason        text not null,
    requested_by  text not null,
    traceparent   text,
    error         text,
    created_at    timestamptz not null,
    started_at    timestamptz,
    finished_at   timestamptz not null,
    primary key (id, finished_at)
) partition by range (finished_at);
create table task_history_default partition of task_history default;
create index task_history_by_instance on task_history (instance_id, finished_at desc);

create table task_step (
    task_id     uuid not null,
    seq         integer not null,
    attempt     integer not null,
    name        text not null,
    state       text not null check (state in ('running', 'succeeded', 'failed')),
    started_at  timestamptz not null,
    finished_at timestamptz,
    primary key (task_id, seq)
);

create table task_log (
    task_id uuid not null,
    seq     bigint not null,
    at      timestamptz not null,
    step    text not null,
    stream  text not null,
    text    text not null,
    primary key (task_id, seq)
);
