-- +goose Up

-- The generation of the last access token that the server has refused and that could not be replaced, or 0.
ALTER TABLE identity_connections ADD COLUMN refused_generation BIGINT NOT NULL DEFAULT 0;
