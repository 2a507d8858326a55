-- +goose Up

-- Ids of templates that an operator has accepted. A later template with such an id is quarantined, unless an operator
-- adds it. Rows stay when a template is removed.
CREATE TABLE accepted (
    tenant TEXT NOT NULL,
    id     TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
);
-- It is not known which templates were accepted before; each may have been.
INSERT INTO accepted (tenant, id) SELECT tenant, id FROM templates;
