-- +goose Up

-- Modules that agents run or ran, so that agents keep working when their guest changes.
CREATE TABLE modules (
    digest TEXT PRIMARY KEY, -- SHA-256 as hex
    guest  TEXT NOT NULL,
    module BYTEA NOT NULL,
    day    BIGINT NOT NULL -- last day on which it was the module of the guest: days since 1970-01-01, UTC
);
