-- +goose Up

-- Keys of archives. The key of place 1 signs. Archives that any of the keys signed may be imported.
CREATE TABLE archive_keys (
    place  BIGINT PRIMARY KEY, -- from 1
    public BYTEA NOT NULL UNIQUE, -- Ed25519, 32 bytes
    seed   BYTEA NOT NULL -- 32 bytes of the key that signs; empty for the others
);

-- Archives that are fetched or sent in parts.
CREATE TABLE archives (
    id     TEXT PRIMARY KEY, -- random
    tenant TEXT NOT NULL,
    person TEXT NOT NULL, -- the subject
    digest TEXT NOT NULL, -- SHA-256 as hex
    comes  BIGINT NOT NULL, -- 1: it is sent for an import; 0: it is fetched
    size   BIGINT NOT NULL, -- in bytes
    have   BIGINT NOT NULL, -- bytes that are stored
    until  BIGINT NOT NULL, -- time of its removal
    made   TEXT NOT NULL, -- id of the agent that was created from it; empty until then
    origin TEXT NOT NULL, -- id of the exported agent; empty until then
    UNIQUE (tenant, person, digest, comes)
);
CREATE TABLE archive_parts (
    id    TEXT NOT NULL REFERENCES archives (id) ON DELETE CASCADE,
    first BIGINT NOT NULL, -- offset of the first byte
    data  BYTEA NOT NULL,
    PRIMARY KEY (id, first)
);
