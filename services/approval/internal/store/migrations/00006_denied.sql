-- +goose Up

-- Until when the call that a person has denied stays so; 0 for what nobody has denied.
-- What was denied before stays so for the 10 min that are the default.
ALTER TABLE approvals ADD COLUMN denied_until BIGINT NOT NULL DEFAULT 0;
UPDATE approvals SET denied_until = ended + 600000000 WHERE state = 7;
DROP INDEX approvals_by_bare;
CREATE INDEX approvals_by_bare ON approvals (tenant, bare, denied_until) WHERE denied_until > 0;
