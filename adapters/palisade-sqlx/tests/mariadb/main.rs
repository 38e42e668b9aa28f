//! The inbox and the fence on a real MariaDB server.

mod server;

use std::time::Duration;

use palisade::idempotency::Context;
use palisade::{Failed, Idempotency, MemoryNode, Outcome, Redlock, RunError};
use palisade_sqlx::fence::{applied, unchanged, value};
use palisade_sqlx::mysql::{fence, inbox, migrate};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::{Connection as _, MySqlConnection};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

struct Lab {
    pool: MySqlPool,
    _server: server::MariaDb,
}

impl Lab {
    async fn new() -> Self {
        let server = server::MariaDb::start();
        let options = MySqlPoolOptions::new().max_connections(20);
        let pool = options.acquire_timeout(Duration::from_secs(20)).connect(&server.url()).await;
        let pool = pool.expect("it accepts connections");
        for _ in 0..2 {
            migrate(&mut pool.acquire().await.expect("one")).await.expect("the tables");
        }
        let effects = "CREATE TABLE effects (id bigint AUTO_INCREMENT PRIMARY KEY, item text)";
        sqlx::query(effects).execute(&pool).await.expect("a table");
        Self { pool, _server: server }
    }

    async fn effects(&self, item: &str) -> i64 {
        let count = "SELECT count(*) FROM effects WHERE item = ?";
        sqlx::query_scalar(count).bind(item).fetch_one(&self.pool).await.expect("a number")
    }
}

fn redlock() -> Redlock {
    Redlock::builder().node(MemoryNode::new()).build().expect("settings")
}

fn at_least_once() -> Idempotency {
    redlock().idempotency("orders").at_least_once().build().expect("settings")
}

async fn effect(tx: &mut MySqlConnection, item: String) -> Result<u64, BoxError> {
    let insert = sqlx::query("INSERT INTO effects (item) VALUES (?)").bind(item);
    Ok(insert.execute(tx).await?.last_insert_id())
}

async fn book(pool: &MySqlPool, cx: &Context) -> Result<u64, BoxError> {
    let mut tx = pool.begin().await?;
    // This read fixes the transaction's snapshot before the other attempt writes its row.
    sqlx::query("SELECT count(*) FROM palisade_inbox").execute(&mut *tx).await?;
    let item = cx.key().to_owned();
    let id = inbox::once(&mut tx, cx, |tx| Box::pin(effect(tx, item))).await?;
    tx.commit().await?;
    Ok(id)
}

#[tokio::test]
async fn an_attempt_that_died_after_its_commit_is_not_repeated_and_the_row_answers_the_probe() {
    let lab = Lab::new().await;
    let keys = redlock().idempotency("orders").at_most_once().build().expect("settings");
    let pool = lab.pool.clone();
    let died = keys.key("k").run(async move |cx: Context| {
        let id = book(&pool, &cx).await?;
        Err::<u64, Failed>(Failed::unknown(id.to_string()))
    });
    let Err(RunError::Handler { failed, .. }) = died.await else { panic!("it died") };
    let id: u64 = failed.to_string().parse().expect("its row");
    let run = |key: &str| {
        let pool = lab.pool.clone();
        let call = keys.key(key).probe(inbox::prober(pool.clone()));
        call.run(async move |cx: Context| book(&pool, &cx).await)
    };
    assert_eq!(run("k").await.expect("answered"), Outcome::Replayed(id));
    assert!(run("another").await.expect("answered").is_executed());
    // Keys are compared as bytes, without a collation. So "K" and "k " are different keys from "k".
    assert!(run("K").await.expect("answered").is_executed());
    assert!(run("k ").await.expect("answered").is_executed());
    assert_eq!(lab.effects("another").await, 1);
    let rows = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM effects");
    assert_eq!(rows.fetch_one(&lab.pool).await.expect("a number"), 4);
}

#[tokio::test]
async fn concurrent_attempts_take_effect_once() {
    let lab = Lab::new().await;
    let attempts = (0..10).map(|_| {
        let pool = lab.pool.clone();
        // Each attempt uses different nodes. So only the inbox prevents a second effect.
        async move {
            at_least_once().key("k").run(async move |cx: Context| book(&pool, &cx).await).await
        }
    });
    let all = futures_util::future::join_all(attempts).await;
    let ids: Vec<_> = all.into_iter().map(|one| one.expect("it runs").into_value()).collect();
    assert!(ids.iter().all(|id| *id == ids[0] && id.is_some()), "{ids:?}");
    assert_eq!(lab.effects("k").await, 1);
}

/// Writes the row of another program's attempt.
async fn write(conn: &mut MySqlConnection, cx: &Context, result: &str) -> Result<(), BoxError> {
    let row = "INSERT INTO palisade_inbox \
               (record, namespace, `key`, fence, attempt, result, done_at, counts_until) \
               VALUES (?, ?, ?, 1, 1, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 DAY)";
    let row = sqlx::query(row).bind(cx.child_key("palisade-sqlx: inbox").into_bytes());
    row.bind(cx.namespace()).bind(cx.key()).bind(result).execute(conn).await?;
    Ok(())
}

#[tokio::test]
async fn a_row_that_is_younger_than_the_snapshot_of_the_transaction_is_found() {
    let lab = Lab::new().await;
    let pool = lab.pool.clone();
    let (begun, wait) = tokio::sync::oneshot::channel();
    let waits = tokio::spawn(at_least_once().key("k").run(async move |cx: Context| {
        let mut other = pool.begin().await?;
        write(&mut other, &cx, "7").await?;
        let mut tx = pool.begin().await?;
        // This read fixes the transaction's snapshot. Later plain reads do not see the row.
        let rows = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM palisade_inbox");
        assert_eq!(rows.fetch_one(&mut *tx).await?, 0);
        let _ = begun.send(other);
        let id = inbox::once(&mut tx, &cx, |tx| Box::pin(effect(tx, "k".to_owned()))).await?;
        tx.commit().await?;
        Ok::<u64, BoxError>(id)
    }));
    let other = wait.await.expect("it begins");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished(), "it waits for the other attempt");
    other.commit().await.expect("committed");
    let found = waits.await.expect("it ends").expect("the row's result");
    assert_eq!((found.into_value(), lab.effects("k").await), (Some(7), 0));
}

#[tokio::test]
async fn an_effect_that_fails_leaves_nothing_also_where_the_transaction_is_committed() {
    let lab = Lab::new().await;
    let pool = lab.pool.clone();
    let keys = at_least_once();
    let failed = keys.key("k").run(async move |cx: Context| {
        let mut tx = pool.begin().await?;
        let half: Result<u64, BoxError> = inbox::once(&mut tx, &cx, |tx| {
            Box::pin(async move {
                effect(tx, "k".to_owned()).await?;
                Err("in the middle".into())
            })
        })
        .await;
        effect(&mut tx, "beside".to_owned()).await?;
        tx.commit().await?;
        half
    });
    assert!(failed.await.is_err());
    assert_eq!((lab.effects("k").await, lab.effects("beside").await), (0, 1));
    let pool = lab.pool.clone();
    let again = keys.key("k").run(async move |cx: Context| book(&pool, &cx).await);
    assert!(again.await.expect("it runs").is_executed());
    assert_eq!(lab.effects("k").await, 1);
}

#[tokio::test]
async fn rows_that_are_over_are_purged_a_few_at_a_time() {
    let lab = Lab::new().await;
    for half_days in -2..=7 {
        let row = "INSERT INTO palisade_inbox \
                   (record, namespace, `key`, fence, attempt, result, done_at, counts_until) \
                   VALUES (?, 'orders', ?, 1, 1, '1', UTC_TIMESTAMP(6), \
                   UTC_TIMESTAMP(6) - INTERVAL ? HOUR)";
        let row = sqlx::query(row).bind(half_days.to_string()).bind(half_days.to_string());
        row.bind(12 * half_days).execute(&lab.pool).await.expect("a row");
    }
    let mut conn = lab.pool.acquire().await.expect("one");
    let mut deleted = Vec::new();
    for _ in 0..3 {
        deleted.push(inbox::purge(&mut conn, "orders", 4).await.expect("it deletes"));
    }
    assert_eq!(deleted, [4, 2, 0], "those of a day and more ago");
}

/// Sells an item under a key with a fingerprint. Returns the receipt of the request, or the error.
async fn sell(prefix: &str, pool: &MySqlPool, request: &str) -> Result<String, String> {
    let redlock = Redlock::builder().node(MemoryNode::new()).prefix(prefix).build();
    let keys = redlock.expect("settings").idempotency("orders").at_least_once().build();
    let (pool, receipt) = (pool.clone(), format!("receipt of {request}"));
    let call = keys.expect("settings").key("order-7").fingerprint(request);
    let sold = call.run(async move |cx: Context| {
        let mut tx = pool.begin().await?;
        let item = cx.key().to_owned();
        let sold = inbox::once(&mut tx, &cx, |tx| {
            Box::pin(async move { effect(tx, item).await.map(|_| receipt) })
        });
        let sold: String = sold.await?;
        tx.commit().await?;
        Ok::<_, BoxError>(sold)
    });
    let sold = sold.await.map_err(|e| std::error::Error::source(&e).expect("why").to_string());
    sold.map(|outcome| outcome.into_value().expect("a receipt"))
}

#[tokio::test]
async fn a_row_is_its_tenants_and_its_requests_until_it_is_over() {
    let lab = Lab::new().await;
    let sell = async |prefix, request| sell(prefix, &lab.pool, request).await;
    assert_eq!(sell("tenant-1:", "two chairs").await.as_deref(), Ok("receipt of two chairs"));
    assert_eq!(sell("tenant-2:", "a piano").await.as_deref(), Ok("receipt of a piano"));
    assert_eq!(sell("tenant-1:", "two chairs").await.as_deref(), Ok("receipt of two chairs"));
    let other = sell("tenant-1:", "a piano").await.expect_err("not its row");
    assert!(other.contains("its fingerprint differs"), "{other}");
    assert_eq!(lab.effects("order-7").await, 2);
    let over = "UPDATE palisade_inbox SET counts_until = UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE";
    sqlx::query(over).execute(&lab.pool).await.expect("rows");
    assert_eq!(sell("tenant-1:", "a piano").await.as_deref(), Ok("receipt of a piano"));
    assert_eq!(lab.effects("order-7").await, 3);
    let counts = "SELECT TIMESTAMPDIFF(SECOND, done_at, counts_until) FROM palisade_inbox \
                  WHERE counts_until > UTC_TIMESTAMP(6)";
    let counts: i64 = sqlx::query_scalar(counts).fetch_one(&lab.pool).await.expect("a row");
    assert_eq!(counts, 24 * 3_600 + 2 * 2, "the retention and twice clock_error");
}

#[tokio::test]
async fn a_row_older_than_the_retention_answers_no_probe_and_lets_only_another_request_run() {
    let lab = Lab::new().await;
    let keys = at_least_once();
    let pool = lab.pool.clone();
    let died = keys.key("k").fingerprint("two chairs").run(async move |cx: Context| {
        book(&pool, &cx).await?;
        Err::<u64, BoxError>("died with its effect".into())
    });
    assert!(died.await.is_err());
    let over = "UPDATE palisade_inbox SET counts_until = UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE";
    sqlx::query(over).execute(&lab.pool).await.expect("a row");
    let again = async |keys: &Idempotency, request| {
        let pool = lab.pool.clone();
        let call = keys.key("k").fingerprint(request).probe(inbox::prober(pool.clone()));
        call.run(async move |cx: Context| book(&pool, &cx).await).await.expect("answered")
    };
    let parked = again(&keys, "two chairs").await;
    assert!(matches!(parked, Outcome::Parked(_)), "{parked:?}");
    assert_eq!(lab.effects("k").await, 1, "no second handler");
    // On these nodes an attempt of another request has failed. The row belongs to the first
    // request.
    let keys = at_least_once();
    let died = keys.key("k").fingerprint("a piano");
    assert!(died.run(async |_| Err::<u64, BoxError>("died".into())).await.is_err());
    assert!(again(&keys, "a piano").await.is_executed());
    assert_eq!(lab.effects("k").await, 2);
}

#[tokio::test]
async fn an_older_token_is_refused_by_column_and_by_table() {
    let lab = Lab::new().await;
    let mutex = redlock().mutex("stock:42").build().expect("a name");
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let guard = mutex.acquire().await.expect("free");
        tokens.push(guard.fencing_token());
        let _ = guard.release().await;
    }
    let (old, new) = (tokens[0], tokens[1]);
    let stock = "CREATE TABLE stock (id int, rest int, fence bigint NOT NULL DEFAULT 0)";
    sqlx::query(stock).execute(&lab.pool).await.expect("a table");
    let put = sqlx::query("INSERT INTO stock (id, rest) VALUES (42, 10)");
    put.execute(&lab.pool).await.expect("a row");
    for (token, rest, written) in [(old, 9, true), (new, 8, true), (new, 8, true), (old, 99, false)]
    {
        let bound = value(token);
        let write = "UPDATE stock SET rest = ?, fence = ? WHERE id = 42 AND fence <= ?";
        let write = sqlx::query(write).bind(rest).bind(bound).bind(bound);
        let done = write.execute(&lab.pool).await.expect("it writes");
        assert_eq!(applied(done.rows_affected(), "stock 42", token).is_ok(), written, "{rest}");
    }
    // Both writes have read the same version. So the second write is refused.
    for written in [true, false] {
        let write = "UPDATE stock SET rest = rest - 1, fence = fence + 1 WHERE fence = ?";
        let write = sqlx::query(write).bind(value(new));
        let done = write.execute(&lab.pool).await.expect("it writes");
        let version = value(new);
        assert_eq!(unchanged(done.rows_affected(), "stock 42", version).is_ok(), written);
    }
    let mut conn = lab.pool.acquire().await.expect("one");
    let mut tx = conn.begin().await.expect("a transaction");
    fence::raise(&mut tx, "stock 42", new).await.expect("it writes").expect("the first");
    tx.commit().await.expect("committed");
    let stale = fence::raise(&mut conn, "stock 42", old).await.expect("it writes");
    let stale = stale.expect_err("an older one");
    assert_eq!(stale.seen, Some(value(new)));
    fence::raise(&mut conn, "stock 42", new).await.expect("it writes").expect("the same again");
}

#[tokio::test]
async fn a_late_reader_and_a_late_writer_are_refused() {
    let lab = Lab::new().await;
    let lock = redlock().rw_lock("doc:7").build().expect("a name");
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let writer = lock.write().await.expect("free");
        tokens.push(writer.fencing_token());
        let _ = writer.release().await;
        let reader = lock.read().await.expect("free");
        tokens.push(reader.fencing_token());
        let _ = reader.release().await;
    }
    let [writer, reader, later, last] = tokens.try_into().expect("four");
    let mut conn = lab.pool.acquire().await.expect("one");
    let mut write = async |token| fence::raise(&mut conn, "doc 7", token).await.expect("it writes");
    let mut conn = lab.pool.acquire().await.expect("one");
    let mut read =
        async |token| fence::raise_read(&mut conn, "doc 7", token).await.expect("it writes");
    read(reader).await.expect("the first reader");
    let late = write(writer).await.expect_err("a reader has read after it");
    assert_eq!((late.token, late.seen), (writer, Some(value(reader))));
    write(later).await.expect("the later writer");
    write(later).await.expect("the same one again");
    let late = read(reader).await.expect_err("a later writer has written");
    assert_eq!((late.token, late.seen), (reader, Some(value(later))));
    read(last).await.expect("the last reader");
    // A reader is not refused if another reader had a larger token, and it does not lower the
    // stored token.
    read(later).await.expect("a reader that was granted before");
    write(last).await.expect_err("the largest token of readers is still there");
}
