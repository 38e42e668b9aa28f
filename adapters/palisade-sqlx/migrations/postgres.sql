-- The tables of palisade-sqlx for PostgreSQL. May be run again. Copy it into your own migrations,
-- or call `palisade_sqlx::migrate`.

-- A row for each key whose effect is in this database, written in the transaction of the effect.
CREATE TABLE IF NOT EXISTS palisade_inbox (
    -- Hash of the record's whole name: prefix, namespace and key.
    record       text        PRIMARY KEY,
    -- For people, and for `purge`.
    namespace    text        NOT NULL,
    key          text        NOT NULL,
    -- The request's fingerprint, if its call has one.
    fingerprint  bytea,
    -- The token and the number of the attempt that took effect.
    fence        bigint      NOT NULL,
    attempt      bigint      NOT NULL,
    -- What the handler returned, as JSON. Null only within its transaction.
    result       text,
    done_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The key may be used anew for an attempt that is claimed later.
    counts_until timestamptz NOT NULL
);

-- For `purge`.
CREATE INDEX IF NOT EXISTS palisade_inbox_counts_until
    ON palisade_inbox (namespace, counts_until);

-- The largest fencing tokens that each resource was written and read with.
CREATE TABLE IF NOT EXISTS palisade_fence (
    resource   text   PRIMARY KEY,
    fence      bigint NOT NULL,
    -- Of readers of a read-write lock. 0 if there were none.
    read_fence bigint NOT NULL DEFAULT 0
);
