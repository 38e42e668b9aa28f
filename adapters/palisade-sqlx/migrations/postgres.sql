-- The tables of palisade-sqlx for PostgreSQL. May be run again. Copy it into your own migrations,
-- or call `palisade_sqlx::migrate`.

-- A row for each key whose effect is in this database, written in the transaction of the effect.
CREATE TABLE IF NOT EXISTS palisade_inbox (
    namespace text        NOT NULL,
    key       text        NOT NULL,
    -- The token and the number of the attempt that took effect.
    fence     bigint      NOT NULL,
    attempt   bigint      NOT NULL,
    -- What the handler returned, as JSON. Null only within its transaction.
    result    text,
    done_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, key)
);

-- For `purge`.
CREATE INDEX IF NOT EXISTS palisade_inbox_done_at ON palisade_inbox (namespace, done_at);

-- The largest fencing token that each resource has seen.
CREATE TABLE IF NOT EXISTS palisade_fence (
    resource text   PRIMARY KEY,
    fence    bigint NOT NULL
);
