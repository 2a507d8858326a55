-- +goose Up

-- What the same call has in common whatever it carries beside what it asks for, hashed:
-- what people denied stays denied by it. Empty for what was opened before, which stays
-- denied by its digest alone.
ALTER TABLE approvals ADD COLUMN bare BYTEA NOT NULL DEFAULT '';
CREATE INDEX approvals_by_bare ON approvals (tenant, bare, ended) WHERE ended > 0;
