-- +goose Up

-- Versions of the tenants' templates, by which processes notice changes.
CREATE TABLE galleries (
    tenant  TEXT PRIMARY KEY,
    version BIGINT NOT NULL -- rises with each change
);
INSERT INTO galleries (tenant, version) SELECT DISTINCT tenant, 1 FROM templates;
