-- +goose Up

-- The one row counts moves. Whoever moves an approval takes the next number, so the
-- order of numbers is that of commits, and a watcher misses nothing.
CREATE TABLE moved (n BIGINT NOT NULL);
INSERT INTO moved (n) VALUES (0);

CREATE TABLE approvals (
    id         TEXT PRIMARY KEY,
    opened     BIGINT NOT NULL UNIQUE, -- number of its first move
    moved      BIGINT NOT NULL UNIQUE, -- number of its newest move
    version    BIGINT NOT NULL,
    tenant     TEXT NOT NULL,
    digest     BYTEA NOT NULL,
    state      BIGINT NOT NULL,        -- the contract's number
    due        BIGINT NOT NULL,        -- when time moves it; 0 where it does not
    ended      BIGINT NOT NULL,        -- 0 before
    server     TEXT NOT NULL,
    name       TEXT NOT NULL,
    subject    TEXT NOT NULL,          -- of the requester
    asker      BYTEA NOT NULL,         -- the requester and its chain, hashed
    holder     TEXT NOT NULL,          -- of the newest claim
    family     BYTEA NOT NULL,         -- the calls that one grant may cover, hashed
    granted_to BIGINT NOT NULL,        -- until when it has a grant; 0 for none
    approval   BYTEA NOT NULL,         -- sluice.approval.v1.Approval
    call       BYTEA NOT NULL,         -- sluice.approval.v1.BoundCall
    decision   BYTEA NOT NULL,         -- sluice.policy.v1.Decision
    decide     BIGINT NOT NULL,        -- how long people have
    execute    BIGINT NOT NULL         -- how long an approved call may wait
);
CREATE INDEX approvals_by_digest ON approvals (tenant, digest, opened);
CREATE INDEX approvals_by_due ON approvals (due) WHERE due > 0;
CREATE INDEX approvals_by_ended ON approvals (ended) WHERE ended > 0;
CREATE INDEX approvals_by_family ON approvals (family, granted_to) WHERE granted_to > 0;
CREATE INDEX approvals_by_asker ON approvals (asker, server, name, opened);
CREATE INDEX approvals_by_opened ON approvals (tenant, opened);
CREATE INDEX approvals_by_moved ON approvals (tenant, moved);

-- Who has what pending: the requester of each, and everybody in its chain.
CREATE TABLE pending (
    approval TEXT NOT NULL REFERENCES approvals (id) ON DELETE CASCADE,
    who      BYTEA NOT NULL,
    PRIMARY KEY (who, approval)
);
CREATE INDEX pending_by_approval ON pending (approval);

CREATE TABLE claims (
    approval TEXT NOT NULL REFERENCES approvals (id) ON DELETE CASCADE,
    place    BIGINT NOT NULL, -- from 0, oldest first
    id       TEXT NOT NULL,
    holder   TEXT NOT NULL,
    lease    TEXT NOT NULL,
    attempt  BIGINT NOT NULL,
    ending   BIGINT NOT NULL,
    PRIMARY KEY (approval, place)
);

CREATE TABLE moves (
    approval TEXT NOT NULL REFERENCES approvals (id) ON DELETE CASCADE,
    version  BIGINT NOT NULL,
    move     BYTEA NOT NULL, -- sluice.approval.v1.Move
    PRIMARY KEY (approval, version)
);
