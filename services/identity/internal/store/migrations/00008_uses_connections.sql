-- +goose Up

-- 1 if the owner has created the token and lets the agent use her connections to servers. Tokens of before have no such
-- right.
ALTER TABLE identity_tokens ADD COLUMN uses_connections BIGINT NOT NULL DEFAULT 0;
