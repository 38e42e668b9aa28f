//! Tests of the time for which an inbox row counts. Attempts prolong the key's record on the nodes,
//! and the row has to live as long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use futures_util::FutureExt as _;
use palisade::idempotency::{Call, Context};
use palisade::{Failed, Idempotency};
use palisade_sqlx::InboxError;

use crate::Lab;
use crate::dialect::{AGES, BoxError, OVER_SINCE, effect, inbox};
use crate::inboxes::{MINUTE, book, cause, of};

const HOUR: i64 = 60 * MINUTE;

/// Makes the call of an attempt, with the fingerprint of `request` or without one.
fn call(keys: &Idempotency, request: Option<&str>) -> Call {
    let call = keys.key("order-7");
    match request {
        Some(request) => call.fingerprint(request),
        None => call,
    }
}

/// Runs an attempt without a probe whose handler uses the inbox. Returns the number of the attempt
/// and the result or the error of the inbox.
async fn attempt(
    lab: &Lab,
    keys: &Idempotency,
    request: Option<&str>,
) -> (u32, Result<i64, String>) {
    let pool = lab.pool.clone();
    let seen = Arc::new(AtomicU32::new(0));
    let number = Arc::clone(&seen);
    let ran = call(keys, request).run(async move |cx: Context| {
        number.store(cx.attempt(), Relaxed);
        book(&pool, &cx).await
    });
    let ran = ran.await.map(|done| done.into_value().expect("a value"));
    (seen.load(Relaxed), ran.map_err(|error| cause(&error)))
}

/// The nodes keep a record for as long as its key is tried again, the row only for its time.
#[tokio::test]
async fn an_effect_is_not_repeated_after_its_row_is_over_while_its_record_lives() {
    let lab = Lab::new().await;
    let (chairs, piano) = (Some("two chairs"), Some("a piano"));
    let mut effects = 0;
    for (over, first, later) in [
        (1, chairs, chairs),
        (MINUTE, chairs, chairs),
        (90 * HOUR, chairs, chairs),
        (MINUTE, None, None),
        (MINUTE, chairs, None),
        (MINUTE, None, chairs),
    ] {
        let keys = of("shop:");
        let pool = lab.pool.clone();
        let died = call(&keys, first).run(async move |cx: Context| {
            book(&pool, &cx).await?;
            Err::<i64, BoxError>("died behind its commit".into())
        });
        assert!(died.await.is_err());
        effects += 1;
        for _ in 0..3 {
            let away = async |_| Err::<i64, BoxError>("the database is away".into());
            assert!(call(&keys, later).run(away).await.is_err());
        }
        sqlx::query(OVER_SINCE).bind(over).execute(&lab.pool).await.expect("a row");
        for number in [5, 6] {
            let (at, ran) = attempt(&lab, &keys, later).await;
            let refused = ran.expect_err("it may have taken effect");
            assert!(refused.contains("older than the retention"), "{refused}");
            assert_eq!(
                (at, lab.effects("order-7").await),
                (number, effects),
                "{first:?} {later:?}"
            );
        }
        // A person has found that the row is of an earlier use of the key, and deleted it.
        sqlx::query("DELETE FROM palisade_inbox").execute(&lab.pool).await.expect("a row");
        assert_eq!(attempt(&lab, &keys, later).await.0, 7);
        effects += 1;
        assert_eq!(lab.effects("order-7").await, effects);
        sqlx::query("DELETE FROM palisade_inbox").execute(&lab.pool).await.expect("a row");
    }
    // This row is certainly of another request than the next one.
    assert!(attempt(&lab, &of("shop:"), chairs).await.1.is_ok());
    sqlx::query(OVER_SINCE).bind(MINUTE).execute(&lab.pool).await.expect("a row");
    let keys = of("shop:");
    let died = call(&keys, piano).run(async |_| Err::<i64, BoxError>("died".into()));
    assert!(died.await.is_err());
    let (at, ran) = attempt(&lab, &keys, piano).await;
    assert_eq!((at, ran.is_ok()), (2, true), "{ran:?}");
}

#[tokio::test]
async fn an_effect_is_not_repeated_after_its_row_is_over_by_attempts_that_do_not_count() {
    let lab = Lab::new().await;
    let (keys, chairs) = (of("shop:"), Some("two chairs"));
    let pool = lab.pool.clone();
    let sold = call(&keys, chairs).run(async move |cx: Context| {
        book(&pool, &cx).await?;
        Err::<i64, Failed>(Failed::retry("no mail was sent"))
    });
    assert!(sold.await.is_err());
    for _ in 0..3 {
        let away = async |_| Err::<i64, Failed>(Failed::retry("the database is away"));
        assert!(call(&keys, chairs).run(away).await.is_err());
    }
    sqlx::query(OVER_SINCE).bind(MINUTE).execute(&lab.pool).await.expect("a row");
    for number in [1, 2] {
        let (at, ran) = attempt(&lab, &keys, chairs).await;
        let refused = ran.expect_err("it took effect");
        assert!(refused.contains("older than the retention"), "{refused}");
        assert_eq!((at, lab.effects("order-7").await), (number, 1));
    }
}

/// The nodes of each use have no record of the earlier one.
#[tokio::test]
async fn a_key_is_used_anew_after_its_retention_unless_by_the_same_request() {
    let lab = Lab::new().await;
    let (chairs, piano) = (Some("two chairs"), Some("a piano"));
    let mut effects = 0;
    for (first, second, anew) in [
        (None, None, true),
        (chairs, None, true),
        (None, chairs, true),
        (chairs, piano, true),
        (chairs, chairs, false),
    ] {
        sqlx::query("DELETE FROM palisade_inbox").execute(&lab.pool).await.expect("it deletes");
        assert!(attempt(&lab, &of("shop:"), first).await.1.is_ok());
        sqlx::query(OVER_SINCE).bind(MINUTE).execute(&lab.pool).await.expect("a row");
        let (at, ran) = attempt(&lab, &of("shop:"), second).await;
        effects += 1 + i64::from(anew);
        assert_eq!((at, ran.is_ok()), (1, anew), "{first:?} {second:?} {ran:?}");
        assert_eq!(lab.effects("order-7").await, effects, "{first:?} {second:?}");
    }
}

/// Runs an attempt whose handler reaches the inbox and then fails in a step behind it, so that the
/// next attempt is the first again. Returns the number of the attempt and its row.
async fn mail_is_down(lab: &Lab, keys: &Idempotency, request: Option<&str>) -> (u32, String) {
    let pool = lab.pool.clone();
    let seen = Arc::new(AtomicU32::new(0));
    let number = Arc::clone(&seen);
    let ran = call(keys, request).run(async move |cx: Context| {
        number.store(cx.attempt(), Relaxed);
        match book(&pool, &cx).await {
            Ok(row) => Err::<i64, Failed>(Failed::retry(row.to_string())),
            Err(error) => Err(Failed::retry(error.to_string())),
        }
    });
    let error = ran.await.expect_err("the mail is down");
    (seen.load(Relaxed), cause(&error))
}

/// The retention is a day, and each attempt comes 15 hours after the one before.
#[tokio::test]
async fn a_row_lives_as_long_as_attempts_reach_it() {
    let lab = Lab::new().await;
    for (n, request) in [None, Some("two chairs")].into_iter().enumerate() {
        sqlx::query("DELETE FROM palisade_inbox").execute(&lab.pool).await.expect("it deletes");
        let keys = of("shop:");
        let first = mail_is_down(&lab, &keys, request).await;
        for _ in 0..4 {
            sqlx::query(AGES).bind(15 * HOUR).execute(&lab.pool).await.expect("a row");
            let again = mail_is_down(&lab, &keys, request).await;
            assert_eq!(again, first, "{request:?}: the row's result, by a first attempt");
        }
        sqlx::query(AGES).bind(15 * HOUR).execute(&lab.pool).await.expect("a row");
        assert!(attempt(&lab, &keys, request).await.1.is_ok());
        assert_eq!(lab.effects("order-7").await, 1 + i64::try_from(n).expect("small"));
    }
}

/// The handler has no transaction of its own, so what the inbox writes is committed.
#[tokio::test]
async fn a_row_that_calls_still_meet_is_not_purged() {
    let lab = Lab::new().await;
    let (keys, chairs) = (of("shop:"), Some("two chairs"));
    assert!(attempt(&lab, &keys, chairs).await.1.is_ok());
    // The key is used again, after its retention, on nodes that have no record of it any more.
    sqlx::query(AGES).bind(100 * HOUR).execute(&lab.pool).await.expect("a row");
    let pool = lab.pool.clone();
    let ran = call(&of("shop:"), chairs).run(async move |cx: Context| {
        let mut conn = pool.acquire().await?;
        for _ in 0..2 {
            let key = cx.key().to_owned();
            let once = inbox::once(&mut conn, &cx, |tx| effect(tx, key).boxed());
            let once: Result<i64, BoxError> = once.await;
            let outlived = once.expect_err("it may have taken effect");
            let outlived = outlived.downcast_ref::<InboxError>();
            assert!(matches!(outlived, Some(InboxError::Outlived { .. })), "{outlived:?}");
        }
        Err::<i64, BoxError>("outlived".into())
    });
    assert!(ran.await.is_err());
    let mut conn = lab.pool.acquire().await.expect("one");
    let purged = inbox::purge(&mut conn, "orders", 9).await.expect("it deletes");
    assert_eq!(purged, 0, "a person has not looked at it yet");
    sqlx::query(AGES).bind(25 * HOUR).execute(&lab.pool).await.expect("a row");
    let purged = inbox::purge(&mut conn, "orders", 9).await.expect("it deletes");
    assert_eq!((purged, lab.effects("order-7").await), (1, 1));
}
