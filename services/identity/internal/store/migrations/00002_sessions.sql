-- +goose Up

-- Sessions are tokens of people who have signed in at an issuer. issuer is the name of the issuer, and issuer_url its
-- identifier. Both are empty for tokens that operators have created. role is the number of sluice.auth.v1.TokenRole.
ALTER TABLE identity_tokens ADD COLUMN issuer TEXT NOT NULL DEFAULT '';
ALTER TABLE identity_tokens ADD COLUMN issuer_url TEXT NOT NULL DEFAULT '';
ALTER TABLE identity_tokens ADD COLUMN role BIGINT NOT NULL DEFAULT 1;
