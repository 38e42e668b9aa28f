-- The tables of palisade-sqlx for MariaDB and MySQL. May be run again. Copy it into your own
-- migrations, or call `palisade_sqlx::mysql::migrate`. Names are bytes: no collation takes two keys
-- for one.

-- A row for each key whose effect is in this database, written in the transaction of the effect.
CREATE TABLE IF NOT EXISTS palisade_inbox (
    namespace varbinary(512) NOT NULL,
    `key`     varbinary(512) NOT NULL,
    -- The token and the number of the attempt that took effect.
    fence     bigint         NOT NULL,
    attempt   bigint         NOT NULL,
    -- What the handler returned, as JSON. Null only within its transaction.
    result    longblob,
    done_at   timestamp      NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (namespace, `key`),
    -- For `purge`.
    KEY palisade_inbox_done_at (namespace, done_at)
) ENGINE = InnoDB;

-- The largest fencing token that each resource has seen.
CREATE TABLE IF NOT EXISTS palisade_fence (
    resource varbinary(512) NOT NULL PRIMARY KEY,
    fence    bigint         NOT NULL
) ENGINE = InnoDB;
