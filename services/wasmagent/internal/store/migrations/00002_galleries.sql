-- +goose Up

-- Which galleries have changed since a process has read them.
CREATE TABLE galleries (
    tenant  TEXT PRIMARY KEY,
    version BIGINT NOT NULL -- rises with each change
);
INSERT INTO galleries (tenant, version) SELECT DISTINCT tenant, 1 FROM templates;
