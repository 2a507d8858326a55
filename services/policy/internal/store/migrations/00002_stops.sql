-- +goose Up

-- Calls that operators have stopped. A stop without an end is in force.
CREATE TABLE stops (
    id              TEXT PRIMARY KEY,
    operator_tenant TEXT NOT NULL,
    operator        TEXT NOT NULL, -- the subject
    agent           TEXT NOT NULL, -- the selector; empty selects all
    server          TEXT NOT NULL,
    tenant          TEXT NOT NULL,
    reason          TEXT NOT NULL,
    began           BIGINT NOT NULL, -- microseconds since 1970
    ended           BIGINT,
    resumed_by      TEXT NOT NULL -- the subject; empty while the stop is in force
);
CREATE UNIQUE INDEX stops_in_force ON stops (operator_tenant, agent, server, tenant) WHERE ended IS NULL;
CREATE INDEX stops_by_end ON stops (operator_tenant, ended);
