-- +goose Up

-- Each person can have her own connection to a server.
ALTER TABLE identity_connections RENAME TO identity_connections_before;

-- The sign-ins of the mesh at MCP servers. A connection without tokens has sealed = ''.
CREATE TABLE identity_connections (
    server              TEXT NOT NULL,
    tenant              TEXT NOT NULL DEFAULT '', -- of the person; empty if the account belongs to no person
    person              TEXT NOT NULL DEFAULT '', -- the subject of the person; empty if the account belongs to no person
    generation          BIGINT NOT NULL, -- increases with each new access token
    sealed              BYTEA NOT NULL,  -- the tokens and the OAuth client, encrypted
    issuer              TEXT NOT NULL,
    scopes              TEXT NOT NULL,   -- separated by spaces
    has_refresh_token   BIGINT NOT NULL, -- 0 or 1
    connected           BIGINT NOT NULL, -- microseconds since 1970, like the other times
    connected_by_tenant TEXT NOT NULL,
    connected_by        TEXT NOT NULL,   -- the subject of the person who has signed in
    refreshed           BIGINT NOT NULL, -- the time at which the access token was issued
    expires             BIGINT NOT NULL, -- of the access token; 0 if the time is not known
    login_required      BIGINT NOT NULL, -- 0 or 1
    problem             TEXT NOT NULL,   -- the error of the last refresh; empty if it has succeeded
    lease               TEXT NOT NULL,   -- the replica that refreshes the tokens; empty if there is none
    lease_until         BIGINT NOT NULL, -- the end of the lease, or the time before which no refresh begins
    refused_generation  BIGINT NOT NULL DEFAULT 0, -- of the last access token that the server has refused and that could not be replaced, or 0
    deleted             BIGINT NOT NULL DEFAULT 0, -- the time at which the tokens were deleted; 0 if they were not
    account_name        TEXT NOT NULL DEFAULT '',  -- from the ID token; empty if it is not known
    PRIMARY KEY (server, tenant, person)
);

-- The new columns have defaults, because replicas of the version before insert rows without them.
INSERT INTO identity_connections (server, generation, sealed, issuer, scopes, has_refresh_token, connected, connected_by_tenant, connected_by,
        refreshed, expires, login_required, problem, lease, lease_until, refused_generation)
    SELECT server, generation, sealed, issuer, scopes, has_refresh_token, connected, connected_by_tenant, connected_by,
        refreshed, expires, login_required, problem, lease, lease_until, refused_generation
    FROM identity_connections_before;

DROP TABLE identity_connections_before;

CREATE INDEX identity_connections_of_tenant ON identity_connections (tenant);
