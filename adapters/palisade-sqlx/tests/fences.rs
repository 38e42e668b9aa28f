//! Tests of writes and reads with fencing tokens: the database refuses a token that is too old.

use palisade::FencingToken;
use palisade_sqlx::fence::{applied, unchanged, value};
use palisade_sqlx::{Changed, Stale};
use sqlx::Connection as _;

use crate::dialect::{fence, sql};
use crate::{Lab, memory};

async fn tokens() -> (FencingToken, FencingToken) {
    let mutex = memory().mutex("stock:42").build().expect("a name");
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let guard = mutex.acquire().await.expect("free");
        tokens.push(guard.fencing_token());
        let _ = guard.release().await;
    }
    (tokens[0], tokens[1])
}

#[tokio::test]
async fn an_older_token_writes_no_row_and_an_equal_one_does() {
    let lab = Lab::new().await;
    let stock = "CREATE TABLE stock (id int, rest int, fence bigint NOT NULL DEFAULT 0);
                 INSERT INTO stock (id, rest) VALUES (42, 10)";
    sqlx::raw_sql(stock).execute(&lab.pool).await.expect("a table");
    let (old, new) = tokens().await;
    assert!(old < new);
    let write = async |token, rest: i32| {
        let write = sql("UPDATE stock SET rest = ?, fence = ? WHERE id = 42 AND fence <= ?");
        let write = sqlx::query(write).bind(rest).bind(value(token)).bind(value(token));
        let done = write.execute(&lab.pool).await.expect("the database writes");
        applied(done.rows_affected(), "stock 42", token)
    };
    write(old, 9).await.expect("the first");
    write(new, 8).await.expect("a newer one");
    write(new, 7).await.expect("the same one again");
    let refused: Stale = write(old, 100).await.expect_err("an older one");
    assert!(refused.to_string().contains("\"stock 42\" refused fencing token"), "{refused}");
    let rest: i32 =
        sqlx::query_scalar("SELECT rest FROM stock").fetch_one(&lab.pool).await.expect("a row");
    assert_eq!(rest, 7);
}

#[tokio::test]
async fn a_raised_token_holds_for_the_transaction() {
    let lab = Lab::new().await;
    let (old, new) = tokens().await;
    let mut conn = lab.pool.acquire().await.expect("one");
    let mut first = conn.begin().await.expect("a transaction");
    fence::raise(&mut first, "stock 42", old).await.expect("it writes").expect("the first");
    // The newer holder waits for the end of the older holder's transaction.
    let pool = lab.pool.clone();
    let newer = tokio::spawn(async move {
        let mut tx = pool.begin().await.expect("a transaction");
        fence::raise(&mut tx, "stock 42", new).await.expect("it writes").expect("newer");
        tx.commit().await.expect("committed");
    });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(!newer.is_finished());
    first.commit().await.expect("committed");
    newer.await.expect("it ends");
    let stale = fence::raise(&mut conn, "stock 42", old).await.expect("it reads");
    let stale = stale.expect_err("an older one");
    assert_eq!((stale.token, stale.seen), (old, Some(value(new))));
    fence::raise(&mut conn, "stock 42", new).await.expect("it writes").expect("the same again");
    fence::raise(&mut conn, "stock 43", old).await.expect("it writes").expect("another resource");
}

pub(crate) async fn tokens_of_readers_and_writers() -> [FencingToken; 4] {
    let lock = memory().rw_lock("doc:7").build().expect("a name");
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let writer = lock.write().await.expect("free");
        tokens.push(writer.fencing_token());
        let _ = writer.release().await;
        let reader = lock.read().await.expect("free");
        tokens.push(reader.fencing_token());
        let _ = reader.release().await;
    }
    tokens.try_into().expect("four")
}

#[tokio::test]
async fn a_late_reader_and_a_late_writer_are_refused_by_the_table() {
    let lab = Lab::new().await;
    let [writer, reader, later, last] = tokens_of_readers_and_writers().await;
    let mut conn = lab.pool.acquire().await.expect("one");
    let mut write = async |token| fence::raise(&mut conn, "doc 7", token).await.expect("it writes");
    let mut conn = lab.pool.acquire().await.expect("one");
    let mut read =
        async |token| fence::raise_read(&mut conn, "doc 7", token).await.expect("it writes");
    write(writer).await.expect("the first writer");
    read(reader).await.expect("the first reader");
    read(reader).await.expect("the same one again");
    let late = write(writer).await.expect_err("a reader has read after it");
    assert_eq!((late.token, late.seen), (writer, Some(value(reader))));
    write(later).await.expect("the later writer");
    let late = read(reader).await.expect_err("a later writer has written");
    assert_eq!((late.token, late.seen), (reader, Some(value(later))));
    read(last).await.expect("the last reader");
    // A reader is not refused if another reader had a larger token, and it does not lower the
    // stored token.
    read(later).await.expect("a reader that was granted before");
    write(last).await.expect_err("the largest token of readers is still there");
}

#[tokio::test]
async fn a_resource_that_was_only_read_refuses_an_earlier_writer() {
    let lab = Lab::new().await;
    let [writer, reader, later, _] = tokens_of_readers_and_writers().await;
    let mut conn = lab.pool.acquire().await.expect("one");
    fence::raise_read(&mut conn, "doc 7", reader).await.expect("it writes").expect("the first");
    let late = fence::raise(&mut conn, "doc 7", writer).await.expect("it writes");
    assert_eq!(late.expect_err("late").seen, Some(value(reader)));
    fence::raise(&mut conn, "doc 7", later).await.expect("it writes").expect("a later writer");
}

#[tokio::test]
async fn of_two_who_read_one_version_one_writes() {
    let lab = Lab::new().await;
    let stock = "CREATE TABLE stock (id int, rest int, version bigint NOT NULL DEFAULT 0);
                 INSERT INTO stock (id, rest) VALUES (42, 10)";
    sqlx::raw_sql(stock).execute(&lab.pool).await.expect("a table");
    let write = async |version: i64, rest: i32| {
        let write =
            "UPDATE stock SET rest = ?, version = version + 1 WHERE id = 42 AND version = ?";
        let write = sqlx::query(sql(write)).bind(rest).bind(version);
        let done = write.execute(&lab.pool).await.expect("the database writes");
        unchanged(done.rows_affected(), "stock 42", version)
    };
    let (one, other) = tokio::join!(write(0, 9), write(0, 8));
    assert_ne!(one.is_ok(), other.is_ok(), "{one:?} {other:?}");
    let refused: Changed = one.and(other).expect_err("one of them");
    assert!(refused.to_string().contains("its version is not 0 any more"), "{refused}");
    write(1, 7).await.expect("it has read again");
    let rest: i32 =
        sqlx::query_scalar("SELECT rest FROM stock").fetch_one(&lab.pool).await.expect("a row");
    assert_eq!(rest, 7);
}
