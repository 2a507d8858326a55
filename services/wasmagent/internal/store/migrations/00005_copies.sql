-- +goose Up

-- Agent whose making an agent's journal begins with: the same for all copies. Empty in rows from before,
-- until the program fills it as it starts.
ALTER TABLE agents ADD COLUMN journal TEXT NOT NULL DEFAULT '';
CREATE INDEX agents_by_journal ON agents (tenant, journal);

-- What was used of a right that has a bound, by an agent and all its copies together. The program moves rows of
-- spent here as it starts.
CREATE TABLE used (
    tenant  TEXT NOT NULL,
    journal TEXT NOT NULL,
    granted TEXT NOT NULL, -- the grant; empty for the manifest
    what    TEXT NOT NULL, -- tool, tokens, cost
    place   BIGINT NOT NULL,
    used    BIGINT NOT NULL,
    day     BIGINT NOT NULL, -- of the last use: days since 1970-01-01, UTC
    PRIMARY KEY (tenant, journal, granted, what, place)
);
