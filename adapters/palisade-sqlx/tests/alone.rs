//! Tests that PostgreSQL alone has: of its settings, of its statements, and of its end.

use std::time::Duration;

use futures_util::FutureExt as _;
use palisade::idempotency::Context;
use palisade_sqlx::{fence, inbox};

use crate::dialect::{BoxError, effect};
use crate::fences::tokens_of_readers_and_writers;
use crate::inboxes::{book, cause, write};
use crate::{Lab, at_least_once, memory};

#[tokio::test]
async fn the_wait_for_another_attempt_ends_by_the_lock_timeout() {
    let lab = Lab::new().await;
    let pool = lab.pool.clone();
    let waits = at_least_once(&memory()).key("k").run(async move |cx: Context| {
        let mut holder = pool.begin().await?;
        write(&mut holder, &cx, None).await;
        let mut tx = pool.begin().await?;
        sqlx::query("SET LOCAL lock_timeout = '200ms'").execute(&mut *tx).await?;
        inbox::once(&mut tx, &cx, |tx| effect(tx, "k".to_owned()).boxed()).await
    });
    let waited = tokio::time::timeout(Duration::from_secs(20), waits).await.expect("it ends");
    let error = cause(&waited.expect_err("the other one is there"));
    assert!(error.contains("inbox of \"orders:k\"") && error.contains("lock timeout"), "{error}");
    assert_eq!(lab.effects("k").await, 0);
}

#[tokio::test]
async fn a_database_that_dies_before_the_commit_leaves_nothing_and_afterwards_it_runs() {
    let mut lab = Lab::new().await;
    let keys = at_least_once(&memory());
    let (pool, (begun, dies)) = (lab.pool.clone(), tokio::sync::oneshot::channel::<()>());
    let (killed, wait) = tokio::sync::oneshot::channel::<()>();
    let call = keys.key("k");
    let run = tokio::spawn(async move {
        call.run(async move |cx: Context| {
            let mut tx = pool.begin().await?;
            let id = inbox::once(&mut tx, &cx, |tx| effect(tx, "k".to_owned()).boxed()).await?;
            let _ = begun.send(());
            let _ = wait.await;
            tx.commit().await?;
            Ok::<i64, BoxError>(id)
        })
        .await
    });
    dies.await.expect("it begins");
    lab.server.kill();
    let _ = killed.send(());
    assert!(run.await.expect("it ends").is_err(), "the commit fails");
    lab.server.again();
    assert_eq!(lab.effects("k").await, 0);
    let pool = lab.pool.clone();
    let again = keys.key("k").run(async move |cx: Context| book(&pool, &cx).await);
    assert!(again.await.expect("it runs").is_executed());
    assert_eq!(lab.effects("k").await, 1);
}

#[tokio::test]
async fn a_late_reader_and_a_late_writer_are_refused_by_columns() {
    let lab = Lab::new().await;
    let doc = "CREATE TABLE doc (id int, body text, fence bigint NOT NULL DEFAULT 0,
                                 read_fence bigint NOT NULL DEFAULT 0);
               INSERT INTO doc VALUES (7, 'first')";
    sqlx::raw_sql(doc).execute(&lab.pool).await.expect("a table");
    let [writer, reader, later, last] = tokens_of_readers_and_writers().await;
    let read = async |token| {
        let sql = "UPDATE doc SET read_fence = greatest(read_fence, $1) \
                   WHERE id = 7 AND fence <= $1 RETURNING body";
        let read = sqlx::query_scalar::<_, String>(sql).bind(fence::value(token));
        let body = read.fetch_optional(&lab.pool).await.expect("the database reads");
        fence::applied(body.iter().len() as u64, "doc 7", token).map(|()| body)
    };
    let write = async |token, body: &str| {
        let sql = "UPDATE doc SET body = $2, fence = $1 \
                   WHERE id = 7 AND fence <= $1 AND read_fence < $1";
        let write = sqlx::query(sql).bind(fence::value(token)).bind(body);
        let done = write.execute(&lab.pool).await.expect("the database writes");
        fence::applied(done.rows_affected(), "doc 7", token)
    };
    write(writer, "second").await.expect("the first writer");
    write(writer, "third").await.expect("the same writer again");
    for _ in 0..2 {
        let body = read(reader).await.expect("readers do not refuse each other");
        assert_eq!(body.as_deref(), Some("third"));
    }
    write(writer, "late").await.expect_err("a reader has read after it");
    write(later, "fourth").await.expect("the later writer");
    read(reader).await.expect_err("a later writer has written");
    assert_eq!(read(last).await.expect("the last reader").as_deref(), Some("fourth"));
}
