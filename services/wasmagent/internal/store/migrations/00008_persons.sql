-- +goose Up

-- The person whose connections to servers the agent uses; empty if there is none. Agents of before that agents have
-- created have none.
ALTER TABLE agents ADD COLUMN person TEXT NOT NULL DEFAULT '';
