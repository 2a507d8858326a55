-- +goose Up

-- Callers whose tokens, sessions, JWTs and agents are refused. Either subject or client is set.
CREATE TABLE identity_blocks (
    tenant            TEXT NOT NULL,
    subject           TEXT NOT NULL,
    client            TEXT NOT NULL,
    created           BIGINT NOT NULL,
    created_by_tenant TEXT NOT NULL,
    created_by        TEXT NOT NULL,
    reason            TEXT NOT NULL,
    PRIMARY KEY (tenant, subject, client)
);
