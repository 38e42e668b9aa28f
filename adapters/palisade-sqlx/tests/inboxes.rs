//! Tests of the inbox: an effect and its row are written in one transaction.

use std::time::Duration;

use futures_util::FutureExt as _;
use palisade::idempotency::Context;
use palisade::{Failed, Idempotency, MemoryNode, Outcome, Probed, Redlock, RunError};
use palisade_sqlx::InboxError;
use serde::{Serialize, de::DeserializeOwned};

use crate::dialect::{BoxError, Conn, LASTS, OVER_SINCE, Pool, ROW, effect, inbox, migrate};
use crate::{Lab, at_least_once, memory};

pub(crate) const MINUTE: i64 = 60_000_000;

/// Handles an order. One transaction commits the effect and the inbox row that records the effect.
pub(crate) async fn book(pool: &Pool, cx: &Context) -> Result<i64, BoxError> {
    let mut tx = pool.begin().await?;
    // In MariaDB, this read fixes the transaction's snapshot before another attempt writes its
    // inbox row.
    sqlx::query("SELECT count(*) FROM palisade_inbox").execute(&mut *tx).await?;
    let key = cx.key().to_owned();
    let id = inbox::once(&mut tx, cx, |tx| effect(tx, key).boxed()).await?;
    tx.commit().await?;
    Ok(id)
}

pub(crate) async fn write(conn: &mut Conn, cx: &Context, result: Option<&str>) {
    let row = sqlx::query(ROW).bind(cx.child_key("palisade-sqlx: inbox")).bind(cx.namespace());
    let row = row.bind(cx.key()).bind(result).bind(24);
    row.execute(conn).await.expect("a row");
}

/// Returns the text of the handler's error.
pub(crate) fn cause(error: &RunError) -> String {
    std::error::Error::source(error).expect("the handler's error").to_string()
}

/// Runs an attempt that commits its effect and then fails.
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
    // This attempt fails before its commit and leaves no row in the inbox. So the next call runs
    // the handler again.
    let died = keys.key("early").run(async |_| Err::<i64, BoxError>("died early".into()));
    assert!(died.await.is_err());
    assert!(probed("early").await.expect("answered").is_executed());
    assert_eq!((lab.effects("k").await, lab.effects("early").await), (1, 1));
}

#[tokio::test]
async fn concurrent_attempts_take_effect_once() {
    let lab = Lab::new().await;
    // Each attempt uses different palisade nodes. So only the inbox prevents a second effect.
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
async fn rows_of_others_are_refused_with_a_sentence_and_a_probe_does_not_know() {
    let lab = Lab::new().await;
    for (key, row, sentence) in
        [("empty", None, "its row has no result"), ("other", Some("\"text\""), "cannot be read as")]
    {
        let pool = lab.pool.clone();
        let ran = at_least_once(&memory()).key(key).run(async move |cx: Context| {
            let mut conn = pool.acquire().await?;
            write(&mut conn, &cx, row).await;
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
async fn rows_that_are_over_are_purged_a_few_at_a_time() {
    let lab = Lab::new().await;
    for half_days in -2..=7 {
        let name = half_days.to_string();
        let row = sqlx::query(ROW).bind(&name).bind("orders").bind(&name).bind("1");
        row.bind(-12 * half_days).execute(&lab.pool).await.expect("a row");
    }
    let mut conn = lab.pool.acquire().await.expect("one");
    let mut purge =
        async |at_most| inbox::purge(&mut conn, "orders", at_most).await.expect("it deletes");
    // The deleted rows lost their validity 24 to 84 hours ago.
    assert_eq!((purge(4).await, purge(4).await, purge(4).await), (4, 2, 0));
    assert_eq!(inbox::purge(&mut conn, "others", 9).await.expect("it deletes"), 0);
}

/// Sells an item under a key with a fingerprint. Returns the receipt of the request, or the error.
async fn sell(keys: &Idempotency, pool: &Pool, request: &str) -> Result<String, String> {
    let call = keys.key("order-7").fingerprint(request).probe(inbox::prober(pool.clone()));
    let (pool, receipt) = (pool.clone(), format!("receipt of {request}"));
    let sold = call.run(async move |cx: Context| {
        let mut tx = pool.begin().await?;
        let key = cx.key().to_owned();
        let sold = inbox::once(&mut tx, &cx, |tx| {
            async move { effect(tx, key).await.map(|_| receipt) }.boxed()
        });
        let sold: String = sold.await?;
        tx.commit().await?;
        Ok::<_, BoxError>(sold)
    });
    match sold.await {
        Ok(Outcome::Executed { value, .. } | Outcome::Replayed(value)) => Ok(value),
        Ok(other) => Err(format!("{other:?}")),
        Err(error) => Err(cause(&error)),
    }
}

pub(crate) fn of(prefix: &str) -> Idempotency {
    let redlock = Redlock::builder().node(MemoryNode::new()).prefix(prefix).build();
    at_least_once(&redlock.expect("settings"))
}

#[tokio::test]
async fn two_tenants_with_one_table_have_an_effect_and_a_receipt_each() {
    let lab = Lab::new().await;
    let (one, two) = (of("tenant-1:"), of("tenant-2:"));
    let sold = sell(&one, &lab.pool, "two chairs").await;
    assert_eq!(sold.as_deref(), Ok("receipt of two chairs"));
    assert_eq!(sell(&two, &lab.pool, "a piano").await.as_deref(), Ok("receipt of a piano"));
    assert_eq!(lab.effects("order-7").await, 2);
    // A process of the first tenant uses nodes that lack the key's record. It finds the tenant's
    // own inbox row.
    let again = sell(&of("tenant-1:"), &lab.pool, "two chairs").await;
    assert_eq!(again.as_deref(), Ok("receipt of two chairs"));
    assert_eq!(lab.effects("order-7").await, 2);
}

#[tokio::test]
async fn another_request_under_the_same_key_is_a_mismatch_until_the_row_is_over() {
    let lab = Lab::new().await;
    assert!(sell(&of("shop:"), &lab.pool, "two chairs").await.is_ok());
    // The nodes of this call have no record of the first request.
    let other = sell(&of("shop:"), &lab.pool, "a piano").await.expect_err("not its row");
    assert!(other.contains("its fingerprint differs"), "{other}");
    assert_eq!(lab.effects("order-7").await, 1);
    // A probe does not return the row of the request for two chairs either. So the key is parked:
    // its handler does not run until a person has decided.
    let keys =
        Redlock::builder().node(MemoryNode::new()).prefix("shop:").build().expect("settings");
    let keys = keys.idempotency("orders").at_most_once().build().expect("settings");
    let died = keys.key("order-7").fingerprint("a piano");
    let died = died.run(async |_| Err::<String, BoxError>("died".into()));
    assert!(died.await.is_err());
    let parked = sell(&keys, &lab.pool, "a piano").await.expect_err("unknown");
    assert!(parked.contains("Parked"), "{parked}");

    let counts: i64 = sqlx::query_scalar(LASTS).fetch_one(&lab.pool).await.expect("a row");
    let minute = 60;
    assert_eq!(counts, 24 * 3_600 + 2 * 2 + minute, "the retention and twice clock_error");
    sqlx::query(OVER_SINCE).bind(MINUTE).execute(&lab.pool).await.expect("a row");
    let new = sell(&of("shop:"), &lab.pool, "a piano").await;
    assert_eq!(new.as_deref(), Ok("receipt of a piano"), "the key is new");
    assert_eq!(lab.effects("order-7").await, 2);
    let rows = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM palisade_inbox");
    assert_eq!(rows.fetch_one(&lab.pool).await.expect("a number"), 1);
}

#[tokio::test]
async fn a_row_older_than_the_retention_answers_no_probe_and_lets_only_another_request_run() {
    let lab = Lab::new().await;
    let keys = of("shop:");
    let pool = lab.pool.clone();
    let died = keys.key("order-7").fingerprint("two chairs").run(async move |cx: Context| {
        let mut conn = pool.acquire().await?;
        let receipt = "a receipt".to_owned();
        let sold = inbox::once(&mut conn, &cx, |_| async { Ok::<_, BoxError>(receipt) }.boxed());
        let _: String = sold.await?;
        Err::<String, BoxError>("died with its effect".into())
    });
    assert!(died.await.is_err());
    // The validity of the inbox row ends. This also happens if all probes fail for a whole
    // retention.
    sqlx::query(OVER_SINCE).bind(MINUTE).execute(&lab.pool).await.expect("a row");
    let parked = sell(&keys, &lab.pool, "two chairs").await.expect_err("unknown");
    assert!(parked.contains("Parked"), "{parked}");
    assert_eq!(lab.effects("order-7").await, 0, "no second handler");
    // On the new nodes of `keys`, an attempt of another request has failed. The row in the inbox
    // table belongs to the first request.
    let keys = of("shop:");
    let died = keys.key("order-7").fingerprint("a piano");
    assert!(died.run(async |_| Err::<String, BoxError>("died".into())).await.is_err());
    let sold = sell(&keys, &lab.pool, "a piano").await;
    assert_eq!(sold.as_deref(), Ok("receipt of a piano"));
}

/// Runs an attempt whose effect has this value. Returns the text of the error.
async fn refused<T>(lab: &Lab, value: T) -> String
where
    T: Serialize + DeserializeOwned + Send + 'static,
{
    let pool = lab.pool.clone();
    let ran = at_least_once(&memory()).key("k").run(async move |cx: Context| {
        let mut tx = pool.begin().await?;
        let once = inbox::once(&mut tx, &cx, |tx| {
            async move { effect(tx, "k".to_owned()).await.map(|_| value) }.boxed()
        });
        let once: Result<T, BoxError> = once.await;
        tx.commit().await?;
        once
    });
    match ran.await {
        Ok(_) => panic!("it was kept"),
        Err(error) => cause(&error),
    }
}

#[tokio::test]
async fn an_effect_whose_result_json_does_not_keep_is_not_committed() {
    let lab = Lab::new().await;
    let number = refused(&lab, vec![1.5, f64::NAN]).await;
    assert!(number.contains("cannot be stored as JSON") && number.contains("NaN"), "{number}");
    let option = refused(&lab, Some(None::<i64>)).await;
    assert!(option.contains("cannot be stored as JSON") && option.contains("`Some`"), "{option}");
    let rows = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM palisade_inbox");
    let rows = rows.fetch_one(&lab.pool).await.expect("a number");
    assert_eq!((rows, lab.effects("k").await), (0, 0));
}

#[tokio::test]
async fn a_row_counts_for_an_attempt_that_was_claimed_before_it_was_over() {
    let lab = Lab::new().await;
    assert!(sell(&of("shop:"), &lab.pool, "two chairs").await.is_ok());
    let pool = lab.pool.clone();
    let late = of("shop:").key("order-7").run(async move |cx: Context| {
        // The handler works for a while before it reads its inbox row.
        tokio::time::sleep(Duration::from_millis(300)).await;
        sqlx::query(OVER_SINCE).bind(200_000_i64).execute(&pool).await?;
        let mut conn = pool.acquire().await?;
        inbox::once(&mut conn, &cx, |_| async { Ok::<_, BoxError>("new".to_owned()) }.boxed()).await
    });
    let late: Result<Outcome<String>, _> = late.await.map_err(|e| cause(&e));
    assert_eq!(late.expect("it runs").into_value().as_deref(), Some("receipt of two chairs"));
}

#[tokio::test]
async fn programs_that_start_together_make_the_tables_once() {
    let lab = Lab::new().await;
    let drop_all = "DROP TABLE palisade_inbox, palisade_fence";
    sqlx::raw_sql(drop_all).execute(&lab.pool).await.expect("none is there");
    let all = (0..8).map(|_| async {
        migrate(&mut lab.pool.acquire().await.expect("one")).await.expect("the tables");
    });
    futures_util::future::join_all(all).await;
}
