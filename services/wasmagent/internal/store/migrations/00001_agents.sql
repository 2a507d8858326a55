-- +goose Up

CREATE TABLE agents (
    id         TEXT PRIMARY KEY,
    made       BIGINT NOT NULL UNIQUE, -- the newest has the highest
    version    BIGINT NOT NULL,        -- rises with each change
    tenant     TEXT NOT NULL,
    owner      TEXT NOT NULL,          -- subject of the person to whom it belongs
    state      BIGINT NOT NULL,        -- the contract's number
    restorable BIGINT NOT NULL,        -- time until which it can be resumed; 0 if it has not ended
    size       BIGINT NOT NULL,        -- of everything that is stored of it, in bytes
    turn       BIGINT NOT NULL,        -- 0: none; 1: one runs; 2: one runs without its caller
    holder     TEXT NOT NULL,          -- process that works on the turn; empty if none
    held       BIGINT NOT NULL,        -- end of its lease; 0 if none
    record     BYTEA NOT NULL          -- sluice.wasmstore.v1.Record
);
CREATE INDEX agents_by_tenant ON agents (tenant, made);
CREATE INDEX agents_by_owner ON agents (tenant, owner, size);
CREATE INDEX agents_by_turn ON agents (turn) WHERE turn > 0;
CREATE INDEX agents_by_end ON agents (restorable) WHERE restorable > 0;

-- The principals behind an agent: its creator, and the principals in the creator's chain.
CREATE TABLE behind (
    id      TEXT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    tenant  TEXT NOT NULL,
    subject TEXT NOT NULL,
    agent   TEXT NOT NULL, -- kind of agent, as the principal declares it
    PRIMARY KEY (tenant, subject, agent, id)
);
CREATE INDEX behind_by_id ON behind (id);

CREATE TABLE events (
    id    TEXT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    place BIGINT NOT NULL, -- from 1
    event BYTEA NOT NULL,  -- sluice.wasmstore.v1.StoredEvent
    PRIMARY KEY (id, place)
);

-- Counters of bounded rights.
CREATE TABLE spent (
    id      TEXT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    granted TEXT NOT NULL, -- the grant; empty for the manifest
    what    TEXT NOT NULL, -- tool, tokens, cost
    place   BIGINT NOT NULL,
    used    BIGINT NOT NULL,
    PRIMARY KEY (id, granted, what, place)
);

-- Templates that were added to the gallery.
CREATE TABLE templates (
    tenant   TEXT NOT NULL,
    id       TEXT NOT NULL,
    template BYTEA NOT NULL, -- sluice.wasmagent.v1.Template
    PRIMARY KEY (tenant, id)
);
