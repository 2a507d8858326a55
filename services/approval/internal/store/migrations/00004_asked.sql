-- +goose Up

-- Who has asked people, and when: once for the requester, and for everybody in its
-- chain. What waits as this begins to be counted was asked as its time to decide began;
-- decide is in nanoseconds.
CREATE TABLE asked (
    who    BYTEA NOT NULL,
    at     BIGINT NOT NULL,
    number BIGINT NOT NULL, -- of the move that asks
    PRIMARY KEY (who, at, number)
);
CREATE INDEX asked_by_at ON asked (at);
INSERT INTO asked (who, at, number)
    SELECT pending.who, approvals.due - approvals.decide / 1000, approvals.moved
    FROM pending JOIN approvals ON approvals.id = pending.approval;

-- What the same call has in common whatever its tool's definition and its server's
-- identity are, hashed; empty for what was opened before: such an approval is not
-- cancelled as soon as the call is asked for anew, but when it is claimed.
ALTER TABLE approvals ADD COLUMN alike BYTEA NOT NULL DEFAULT '';
