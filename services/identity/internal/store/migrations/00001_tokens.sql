-- +goose Up

-- Tokens that operators have created. Only hashes of the secrets are stored.
CREATE TABLE identity_tokens (
    name              TEXT PRIMARY KEY,
    sha256            TEXT NOT NULL UNIQUE, -- of the secret, in hexadecimal digits
    previous          TEXT NOT NULL, -- the secrets that were replaced and are still valid: a JSON array
    tenant            TEXT NOT NULL,
    subject           TEXT NOT NULL,
    agent             TEXT NOT NULL,
    owner             TEXT NOT NULL, -- empty if there is none
    member_of         TEXT NOT NULL, -- the groups: a JSON array
    servers           TEXT NOT NULL, -- a JSON array; empty if the token is for all servers
    created           BIGINT NOT NULL, -- microseconds since 1970, like the other times
    expires           BIGINT NOT NULL,
    life              BIGINT NOT NULL, -- the time from the creation, or from the last rotation, to expires
    created_by_tenant TEXT NOT NULL,
    created_by        TEXT NOT NULL, -- the subject of the operator
    last_used         BIGINT NOT NULL, -- 0 if the token was never used
    revoked           BIGINT NOT NULL, -- 0 unless the token was revoked
    revoked_by_tenant TEXT NOT NULL,
    revoked_by        TEXT NOT NULL,
    ended             BIGINT NOT NULL -- the time of the revocation, otherwise the expiry
);
CREATE INDEX identity_tokens_by_end ON identity_tokens (tenant, ended);

-- The version of the tokens, in one row. It increases with each change, except with uses. imported is 1 after the tokens
-- that the policy service stored in earlier versions were copied, and 2 after the policy service has deleted them.
CREATE TABLE identity_changes (
    version  BIGINT NOT NULL,
    imported BIGINT NOT NULL
);
INSERT INTO identity_changes (version, imported) VALUES (0, 0);

-- The replicas of the identity service. version is the newest version of the tokens that all services that are
-- connected to the replica use.
CREATE TABLE identity_replicas (
    id      TEXT PRIMARY KEY,
    version BIGINT NOT NULL,
    seen    BIGINT NOT NULL
);

-- The keys of issuers, for a start while an issuer is unavailable.
CREATE TABLE identity_keys (
    source  TEXT PRIMARY KEY, -- a digest of where the keys come from
    keys    BYTEA NOT NULL,   -- sluice.identity.v1.Issuer with only its keys
    fetched BIGINT NOT NULL
);
