-- +goose Up

-- When and how a person has authenticated at the issuer: the claims auth_time and acr of the ID token. auth_time is in
-- microseconds since 1970. They are 0 and empty if the issuer has not sent them, and for tokens that are no sessions.
ALTER TABLE identity_tokens ADD COLUMN auth_time BIGINT NOT NULL DEFAULT 0;
ALTER TABLE identity_tokens ADD COLUMN acr TEXT NOT NULL DEFAULT '';
