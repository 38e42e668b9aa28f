-- The tables of palisade-sqlx for MariaDB and MySQL. Copy this file into your own migrations, or
-- call `palisade_sqlx::mysql::migrate`. It may be run several times. Names are stored as bytes, so
-- that no collation compares two different keys as equal.

-- One row for each idempotency key whose effect is in this database. The row is written in the same
-- transaction as the effect.
CREATE TABLE IF NOT EXISTS palisade_inbox (
    -- Hash of the key's whole name: prefix, namespace and key.
    record       binary(32)     NOT NULL PRIMARY KEY,
    -- Namespace and key as texts, for people and for the function `purge`.
    namespace    varbinary(512) NOT NULL,
    `key`        varbinary(512) NOT NULL,
    -- Fingerprint of the request, or null if the call has none.
    fingerprint  binary(32),
    -- Fencing token and number of the attempt that took effect.
    fence        bigint         NOT NULL,
    attempt      bigint         NOT NULL,
    -- Result of the handler, as JSON. It is null only within the transaction.
    result       longblob,
    -- Time of the effect, in UTC.
    done_at      datetime(6)    NOT NULL,
    -- End of the time in which the row counts, in UTC. An attempt that is claimed later may use the
    -- key anew.
    counts_until datetime(6)    NOT NULL,
    -- Index for the function `purge`, which deletes rows that no longer count.
    KEY palisade_inbox_counts_until (namespace, counts_until)
) ENGINE = InnoDB;

-- The largest fencing tokens with which each resource was written and read. A smaller token is
-- refused.
CREATE TABLE IF NOT EXISTS palisade_fence (
    resource   varbinary(512) NOT NULL PRIMARY KEY,
    fence      bigint         NOT NULL,
    -- The largest token of a reader of a read-write lock, or 0 if there was no reader.
    read_fence bigint         NOT NULL DEFAULT 0
) ENGINE = InnoDB;
