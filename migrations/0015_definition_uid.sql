-- Generations begin anew with what replaces a definition, and labels can be copied: the very object that was applied is known by its uid.
-- Of charts there is none: Helm's records carry our labels only where svcforge wrote them.
alter table instance add column release_uid text;
