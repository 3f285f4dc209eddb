-- Who leads. Leader writes read (name, epoch) FOR KEY SHARE; the unique key makes a takeover, which changes the epoch, wait for
-- them, and lets a renewal, which touches only the expiry, pass them by.
create table leader (
    name        text primary key,
    epoch       bigint not null,
    -- Made at the start of a process, never a host name: a restarted pod is somebody else.
    holder      uuid not null,
    since       timestamptz not null,
    expires_at  timestamptz not null,
    unique (name, epoch)
);
