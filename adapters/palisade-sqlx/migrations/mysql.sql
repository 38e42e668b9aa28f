-- The tables of palisade-sqlx for MariaDB and MySQL. May be run again. Copy it into your own
-- migrations, or call `palisade_sqlx::mysql::migrate`. Names are bytes: no collation takes two keys
-- for one.

-- Rows of the first form have neither the prefix nor the request's fingerprint.
SET @palisade = (
    SELECT IF(COUNT(*) > 0 AND SUM(column_name = 'record') = 0,
        'RENAME TABLE palisade_inbox TO palisade_inbox_unnamed', 'DO 0')
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'palisade_inbox'
);
PREPARE palisade FROM @palisade;
EXECUTE palisade;
DEALLOCATE PREPARE palisade;

-- Which request such a row is of cannot be told: where one is there, nothing is run. Nothing is
-- written here any more, and `inbox::purge` deletes them.
CREATE TABLE IF NOT EXISTS palisade_inbox_unnamed (
    namespace varbinary(512) NOT NULL,
    `key`     varbinary(512) NOT NULL,
    fence     bigint         NOT NULL,
    attempt   bigint         NOT NULL,
    result    longblob,
    done_at   timestamp      NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (namespace, `key`)
) ENGINE = InnoDB;

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

-- The largest fencing token that each resource has seen.
CREATE TABLE IF NOT EXISTS palisade_fence (
    resource varbinary(512) NOT NULL PRIMARY KEY,
    fence    bigint         NOT NULL
) ENGINE = InnoDB;
