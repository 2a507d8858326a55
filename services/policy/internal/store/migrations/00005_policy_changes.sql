-- +goose Up

-- The approval by which documents became active, and the people who gave it. Both are empty if none was required.
ALTER TABLE policy_activations ADD COLUMN approval TEXT NOT NULL DEFAULT '';
ALTER TABLE policy_activations ADD COLUMN approved_by TEXT NOT NULL DEFAULT ''; -- subjects: a JSON array
CREATE UNIQUE INDEX policy_activations_by_approval ON policy_activations (approval) WHERE approval <> '';

-- Changes of the documents for which an approval was requested.
CREATE TABLE policy_changes (
    id       TEXT PRIMARY KEY, -- SHA-256 of the activation that is replaced, the documents, the author and the reason
    replaces BIGINT NOT NULL,  -- the number of the activation that is replaced; 0 if there is none
    approval TEXT NOT NULL,    -- empty until the approval was requested
    staged   BIGINT NOT NULL,  -- microseconds since 1970
    params   BYTEA NOT NULL    -- what approvers are shown, as JSON
);
CREATE INDEX policy_changes_by_replaced ON policy_changes (replaces);
