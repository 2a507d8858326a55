-- +goose Up

-- Use of models by the agents of one person in one day.
CREATE TABLE model_days (
    tenant TEXT NOT NULL,
    person TEXT NOT NULL, -- the subject
    day    BIGINT NOT NULL, -- days since 1970-01-01, UTC
    tokens BIGINT NOT NULL,
    nanos  BIGINT NOT NULL, -- billionths of a US dollar
    PRIMARY KEY (tenant, person, day)
);
