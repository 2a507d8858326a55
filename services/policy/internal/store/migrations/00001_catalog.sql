-- +goose Up

-- The number of changes of the catalog, in one row.
CREATE TABLE changes (
    version BIGINT NOT NULL
);
INSERT INTO changes (version) VALUES (0);

CREATE TABLE servers (
    name       TEXT PRIMARY KEY,
    version    BIGINT NOT NULL, -- the version of the last change
    classifier BIGINT NOT NULL, -- the version of the classifier that made the classes in state
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
