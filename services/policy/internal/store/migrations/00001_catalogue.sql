-- +goose Up

-- How often the catalogue has changed: one row.
CREATE TABLE changes (
    version BIGINT NOT NULL
);
INSERT INTO changes (version) VALUES (0);

CREATE TABLE servers (
    name       TEXT PRIMARY KEY,
    version    BIGINT NOT NULL, -- of the change that made it so
    classifier BIGINT NOT NULL, -- version of what made the classes in state
    state      BYTEA NOT NULL   -- catalog.Server as JSON
);
CREATE INDEX servers_by_version ON servers (version);

-- Definitions as servers sent them.
CREATE TABLE definitions (
    server TEXT NOT NULL,
    digest TEXT NOT NULL, -- SHA-256 of the canonical form, in hexadecimal digits
    text   TEXT NOT NULL,
    PRIMARY KEY (server, digest)
);
