-- +goose Up

-- Id of the agent whose creation is the first event of the journal: the same for all copies. Empty in older rows until
-- the program sets it at its start.
ALTER TABLE agents ADD COLUMN journal TEXT NOT NULL DEFAULT '';
CREATE INDEX agents_by_journal ON agents (tenant, journal);

-- Counters of bounded rights, shared by an agent and all its copies. The program moves rows of spent here at its start.
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
