-- +goose Up

-- Modules of guests that agents run or ran, so that a guest that changes strands none.
CREATE TABLE modules (
    digest TEXT PRIMARY KEY, -- SHA-256 as hex
    guest  TEXT NOT NULL,
    module BYTEA NOT NULL,
    day    BIGINT NOT NULL -- the last day on which it was the guest's: days since 1970-01-01, UTC
);
