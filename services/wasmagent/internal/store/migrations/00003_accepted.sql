-- +goose Up

-- Ids of templates that an operator has accepted. A template that gets such an id later is
-- quarantined, whoever adds it, unless an operator does. Rows stay when a template is removed.
CREATE TABLE accepted (
    tenant TEXT NOT NULL,
    id     TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
);
-- Which templates were accepted before is not known: each may have been.
INSERT INTO accepted (tenant, id) SELECT tenant, id FROM templates;
