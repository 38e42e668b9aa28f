-- The tables of palisade-sqlx for MariaDB and MySQL. May be run again. Copy it into your own
-- migrations, or call `palisade_sqlx::mysql::migrate`. Names are bytes: no collation takes two keys
-- for one.

-- A row for each key whose effect is in this database, written in the transaction of the effect.
CREATE TABLE IF NOT EXISTS palisade_inbox (
    -- Hash of the record's whole name: prefix, namespace and key.
    record       binary(32)     NOT NULL PRIMARY KEY,
    -- For people, and for `purge`.
    namespace    varbinary(512) NOT NULL,
    `key`        varbinary(512) NOT NULL,
    -- The request's fingerprint, if its call has one.
    fingerprint  binary(32),
    -- The token and the number of the attempt that took effect.
    fence        bigint         NOT NULL,
    attempt      bigint         NOT NULL,
    -- What the handler returned, as JSON. Null only within its transaction.
    result       longblob,
    -- In UTC.
    done_at      datetime(6)    NOT NULL,
    -- In UTC. The key may be used anew for an attempt that is claimed later.
    counts_until datetime(6)    NOT NULL,
    -- For `purge`.
    KEY palisade_inbox_counts_until (namespace, counts_until)
) ENGINE = InnoDB;

-- The largest fencing tokens that each resource was written and read with.
CREATE TABLE IF NOT EXISTS palisade_fence (
    resource   varbinary(512) NOT NULL PRIMARY KEY,
    fence      bigint         NOT NULL,
    -- Of readers of a read-write lock. 0 if there were none.
    read_fence bigint         NOT NULL DEFAULT 0
) ENGINE = InnoDB;
