-- +goose Up

-- How many have not ended is counted all the time, and most have.
CREATE INDEX approvals_open ON approvals (state) WHERE ended = 0;
