-- +goose Up

-- What people are to be told: made in the transaction of the move that it is about,
-- one for each channel, and sent by whichever replica takes it.
CREATE TABLE notices (
    id       TEXT PRIMARY KEY,     -- approval, version and channel; the same at every attempt
    sequence BIGINT NOT NULL,      -- number of the move
    approval TEXT NOT NULL REFERENCES approvals (id) ON DELETE CASCADE,
    version  BIGINT NOT NULL,      -- of the approval, after the move
    kind     TEXT NOT NULL,
    channel  TEXT NOT NULL,
    state    BIGINT NOT NULL,      -- 0 waits, 1 sent, 2 moot, 3 given up
    attempts BIGINT NOT NULL,
    due      BIGINT NOT NULL,      -- when it was to be sent first
    next     BIGINT NOT NULL,      -- when it is sent next; while it is taken, when that ends
    ended    BIGINT NOT NULL,      -- 0 while it waits
    receipt  TEXT NOT NULL,        -- what the channel remembers it by
    about    BYTEA NOT NULL        -- sluice.approval.v1.Approval as the move left it
);
CREATE INDEX notices_by_next ON notices (channel, next) WHERE state = 0;
CREATE INDEX notices_by_approval ON notices (approval, channel, sequence);
CREATE INDEX notices_by_ended ON notices (ended) WHERE ended > 0;
