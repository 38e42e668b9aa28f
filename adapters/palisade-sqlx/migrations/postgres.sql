-- The tables of palisade-sqlx for PostgreSQL. Copy this file into your own migrations, or call
-- `palisade_sqlx::migrate`. It may be run several times.

-- One row for each idempotency key whose effect is in this database. The row is written in the same
-- transaction as the effect.
CREATE TABLE IF NOT EXISTS palisade_inbox (
    -- Hash of the key's whole name: prefix, namespace and key.
    record       text        PRIMARY KEY,
    -- Namespace and key as texts, for people and for the function `purge`.
    namespace    text        NOT NULL,
    key          text        NOT NULL,
    -- Fingerprint of the request, or null if the call has none.
    fingerprint  bytea,
    -- Fencing token and number of the attempt that took effect.
    fence        bigint      NOT NULL,
    attempt      bigint      NOT NULL,
    -- Result of the handler, as JSON. It is null only within the transaction.
    result       text,
    done_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- End of the time in which the row counts. An attempt that is claimed later may use the key
    -- anew.
    counts_until timestamptz NOT NULL
);

-- Index for the function `purge`, which deletes rows that no longer count.
CREATE INDEX IF NOT EXISTS palisade_inbox_counts_until
    ON palisade_inbox (namespace, counts_until);

-- The largest fencing tokens with which each resource was written and read. A smaller token is
-- refused.
CREATE TABLE IF NOT EXISTS palisade_fence (
    resource   text   PRIMARY KEY,
    fence      bigint NOT NULL,
    -- The largest token of a reader of a read-write lock, or 0 if there was no reader.
    read_fence bigint NOT NULL DEFAULT 0
);
