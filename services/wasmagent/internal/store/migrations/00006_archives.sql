-- +goose Up

-- Keys of archives. That of place 1 signs; archives that any of them signed may be imported.
CREATE TABLE archive_keys (
    place  BIGINT PRIMARY KEY, -- from 1
    public BYTEA NOT NULL UNIQUE, -- Ed25519, 32 bytes
    seed   BYTEA NOT NULL -- 32 bytes of the key that signs; empty for all others
);

-- Archives that are fetched or sent in parts.
CREATE TABLE archives (
    id     TEXT PRIMARY KEY, -- random
    tenant TEXT NOT NULL,
    person TEXT NOT NULL, -- the subject
    digest TEXT NOT NULL, -- SHA-256 as hex
    comes  BIGINT NOT NULL, -- 1: it is sent to be imported; 0: it is fetched
    size   BIGINT NOT NULL, -- in bytes
    have   BIGINT NOT NULL, -- so many of them are stored
    until  BIGINT NOT NULL, -- when it is removed
    made   TEXT NOT NULL, -- agent that was made of it; empty before
    origin TEXT NOT NULL, -- agent that it is an archive of, once one was made of it
    UNIQUE (tenant, person, digest, comes)
);
CREATE TABLE archive_parts (
    id    TEXT NOT NULL REFERENCES archives (id) ON DELETE CASCADE,
    first BIGINT NOT NULL, -- place of the first byte
    data  BYTEA NOT NULL,
    PRIMARY KEY (id, first)
);
