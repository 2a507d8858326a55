-- +goose Up

-- Sets of policy documents that were applied, each stored once.
CREATE TABLE policy_documents (
    id        TEXT PRIMARY KEY, -- SHA-256 of the paths and texts, in hexadecimal digits
    bytes     BIGINT NOT NULL,  -- the size of documents
    documents BYTEA NOT NULL
);

-- Each time at which a set of documents became active. The one with the greatest number is active.
CREATE TABLE policy_activations (
    number    BIGINT PRIMARY KEY, -- from 1, without gaps between those that are stored
    documents TEXT NOT NULL REFERENCES policy_documents (id),
    author    TEXT NOT NULL,   -- the subject of the operator
    reason    TEXT NOT NULL,
    activated BIGINT NOT NULL  -- microseconds since 1970; increases with the number
);
CREATE INDEX policy_activations_by_documents ON policy_activations (documents);
