-- When ServiceDefinitions and Workflows were last seen to be as they are kept, and of which namespace: what is kept changes only with
-- what is said, so that it alone does not tell whether anybody still looks.
create table definitions_read (
    only_row  boolean primary key default true check (only_row),
    namespace text not null,
    at        timestamptz,
    -- Why they cannot be read since.
    error     text
);
