//! Effects and their rows in one transaction.

use std::time::Duration;

use futures_util::FutureExt as _;
use palisade::idempotency::Context;
use palisade::{Failed, Idempotency, Outcome, Probed, RunError};
use palisade_sqlx::{InboxError, inbox, migrate};
use sqlx::PgConnection;
use sqlx::postgres::PgPool;

use crate::{Lab, at_least_once, memory};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn effect(tx: &mut PgConnection, key: String) -> Result<i64, BoxError> {
    let insert = sqlx::query_scalar("INSERT INTO effects (key) VALUES ($1) RETURNING id");
    Ok(insert.bind(key).fetch_one(tx).await?)
}

/// The handler of an order: its effect and its row, committed together.
async fn book(pool: &PgPool, cx: &Context) -> Result<i64, BoxError> {
    let mut tx = pool.begin().await?;
    let key = cx.key().to_owned();
    let id = inbox::once(&mut tx, cx, |tx| effect(tx, key).boxed()).await?;
    tx.commit().await?;
    Ok(id)
}

/// What the handler failed with.
fn cause(error: &RunError) -> String {
    std::error::Error::source(error).expect("the handler's error").to_string()
}

/// Dies, as far as Redis knows, after the effect was committed.
async fn die_after_commit(lab: &Lab, keys: &Idempotency, key: &str) -> i64 {
    let pool = lab.pool.clone();
    let died = keys.key(key).run(async move |cx: Context| {
        let id = book(&pool, &cx).await?;
        Err::<i64, Failed>(Failed::unknown(id.to_string()))
    });
    match died.await {
        Err(RunError::Handler { failed, .. }) => failed.to_string().parse().expect("its row"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_attempt_that_died_after_its_commit_is_not_repeated() {
    let lab = Lab::new().await;
    let keys = at_least_once(&memory());
    let id = die_after_commit(&lab, &keys, "k").await;
    let pool = lab.pool.clone();
    let again = keys.key("k").run(async move |cx: Context| {
        assert_eq!(cx.attempt(), 2);
        book(&pool, &cx).await
    });
    assert_eq!(again.await.expect("it runs").into_value(), Some(id), "the row's result");
    assert_eq!(lab.effects("k").await, 1);
}

#[tokio::test]
async fn the_row_answers_the_probe() {
    let lab = Lab::new().await;
    let keys = memory().idempotency("orders").at_most_once();
    let keys = keys.build().expect("settings");
    let id = die_after_commit(&lab, &keys, "k").await;
    let probed = |key: &str| {
        let pool = lab.pool.clone();
        let call = keys.key(key).probe(inbox::prober(pool.clone()));
        call.run(async move |cx: Context| book(&pool, &cx).await)
    };
    assert_eq!(probed("k").await.expect("answered"), Outcome::Replayed(id));
    // Died before its commit: no row, so it runs.
    let died = keys.key("early").run(async |_| Err::<i64, BoxError>("died early".into()));
    assert!(died.await.is_err());
    assert!(probed("early").await.expect("answered").is_executed());
    assert_eq!((lab.effects("k").await, lab.effects("early").await), (1, 1));
}

#[tokio::test]
async fn concurrent_attempts_take_effect_once() {
    let lab = Lab::new().await;
    // Each has nodes of its own, so nothing but the inbox keeps them apart.
    let attempts = (0..10).map(|_| {
        let pool = lab.pool.clone();
        let keys = at_least_once(&memory());
        async move { keys.key("k").run(async move |cx: Context| book(&pool, &cx).await).await }
    });
    let all = futures_util::future::join_all(attempts).await;
    let ids: Vec<_> = all.into_iter().map(|one| one.expect("it runs").into_value()).collect();
    assert!(ids.iter().all(|id| *id == ids[0] && id.is_some()), "{ids:?}");
    assert_eq!(lab.effects("k").await, 1);
}

#[tokio::test]
async fn an_effect_that_fails_leaves_nothing_also_where_the_transaction_is_committed() {
    let lab = Lab::new().await;
    let keys = at_least_once(&memory());
    let pool = lab.pool.clone();
    let failed = keys.key("k").run(async move |cx: Context| {
        let mut tx = pool.begin().await?;
        let half = inbox::once(&mut tx, &cx, |tx| {
            async move {
                effect(tx, "k".to_owned()).await?;
                Err::<i64, BoxError>("in the middle".into())
            }
            .boxed()
        });
        let half = half.await;
        effect(&mut tx, "beside".to_owned()).await?;
        tx.commit().await?;
        half
    });
    let error = cause(&failed.await.expect_err("it failed"));
    assert!(error.contains("in the middle"), "{error}");
    assert_eq!((lab.effects("k").await, lab.effects("beside").await), (0, 1));
    let pool = lab.pool.clone();
    let again = keys.key("k").run(async move |cx: Context| book(&pool, &cx).await);
    assert!(again.await.expect("it runs").is_executed());
    assert_eq!(lab.effects("k").await, 1);
}

#[tokio::test]
async fn without_a_transaction_effect_and_row_are_one_all_the_same() {
    let lab = Lab::new().await;
    let keys = at_least_once(&memory());
    for died in [true, false] {
        let pool = lab.pool.clone();
        let ran = keys.key("k").run(async move |cx: Context| {
            let mut conn = pool.acquire().await?;
            inbox::once(&mut conn, &cx, |tx| {
                async move {
                    let id = effect(tx, "k".to_owned()).await?;
                    if died { Err::<i64, BoxError>("died".into()) } else { Ok(id) }
                }
                .boxed()
            })
            .await
        });
        assert_eq!(ran.await.is_err(), died);
    }
    assert_eq!(lab.effects("k").await, 1);
}

#[tokio::test]
async fn the_wait_for_another_attempt_ends_by_the_lock_timeout() {
    let lab = Lab::new().await;
    let mut holder = lab.pool.begin().await.expect("a transaction");
    let row = "INSERT INTO palisade_inbox (namespace, key, fence, attempt) \
               VALUES ('orders', 'k', 1, 1)";
    sqlx::query(row).execute(&mut *holder).await.expect("a row");
    let pool = lab.pool.clone();
    let waits = at_least_once(&memory()).key("k").run(async move |cx: Context| {
        let mut tx = pool.begin().await?;
        sqlx::query("SET LOCAL lock_timeout = '200ms'").execute(&mut *tx).await?;
        inbox::once(&mut tx, &cx, |tx| effect(tx, "k".to_owned()).boxed()).await
    });
    let waited = tokio::time::timeout(Duration::from_secs(20), waits).await.expect("it ends");
    let error = cause(&waited.expect_err("the other one is there"));
    assert!(error.contains("inbox of \"orders:k\"") && error.contains("lock timeout"), "{error}");
    holder.rollback().await.expect("rolled back");
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
async fn rows_of_others_are_refused_with_a_sentence_and_a_probe_does_not_know() {
    let lab = Lab::new().await;
    let rows = "INSERT INTO palisade_inbox (namespace, key, fence, attempt, result) VALUES \
                ('orders', 'empty', 1, 1, NULL), ('orders', 'other', 1, 1, '\"text\"')";
    sqlx::raw_sql(rows).execute(&lab.pool).await.expect("rows");
    for (key, sentence) in [("empty", "its row has no result"), ("other", "cannot be read as")] {
        let pool = lab.pool.clone();
        let ran = at_least_once(&memory()).key(key).run(async move |cx: Context| {
            let mut conn = pool.acquire().await?;
            assert_eq!(inbox::probe::<i64>(&mut conn, &cx).await, Probed::Unknown);
            let done = inbox::once(&mut conn, &cx, |tx| effect(tx, "x".to_owned()).boxed()).await;
            let error = done.as_ref().expect_err("refused").downcast_ref::<InboxError>();
            assert!(error.is_some(), "{done:?}");
            done
        });
        let error = cause(&ran.await.expect_err("refused"));
        assert!(error.contains(sentence), "{error}");
    }
    assert_eq!(lab.effects("x").await, 0);
}

#[tokio::test]
async fn old_rows_are_purged_a_few_at_a_time() {
    let lab = Lab::new().await;
    let rows = "INSERT INTO palisade_inbox (namespace, key, fence, attempt, result, done_at) \
                SELECT 'orders', i::text, 1, 1, '1', now() - make_interval(days => i) \
                FROM generate_series(1, 10) AS i";
    sqlx::raw_sql(rows).execute(&lab.pool).await.expect("rows");
    let mut conn = lab.pool.acquire().await.expect("one");
    let day = Duration::from_hours(24);
    let mut purge = async |at_most| {
        inbox::purge(&mut conn, "orders", day * 11 / 2, at_most).await.expect("it deletes")
    };
    assert_eq!((purge(3).await, purge(3).await, purge(3).await), (3, 2, 0));
    assert_eq!(inbox::purge(&mut conn, "others", day, 9).await.expect("it deletes"), 0);
}

#[tokio::test]
async fn programs_that_start_together_make_the_tables_once() {
    let lab = Lab::new().await;
    sqlx::raw_sql("DROP TABLE palisade_inbox, palisade_fence").execute(&lab.pool).await.expect("");
    let all = (0..8).map(|_| async {
        migrate(&mut lab.pool.acquire().await.expect("one")).await.expect("the tables");
    });
    futures_util::future::join_all(all).await;
}
