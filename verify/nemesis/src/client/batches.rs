//! Batches of keys that several clients run at the same time, and that some drop halfway.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use palisade::idempotency::Context;
use palisade::{Failed, Outcome, RunError};
use rand::RngExt as _;
use tokio::sync::Mutex;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::Task;
use crate::event::{Answer, Nanos, SECOND, Verb, What, now};
use crate::wire::{Ask, Ledger};

/// In this time all clients draw from the same keys.
const SPAN: Nanos = 2 * SECOND;
/// Keys of a span, and those of one batch.
const KEYS: u64 = 24;
const BATCH: u64 = 16;
/// Handlers of a batch at once.
const AT_ONCE: usize = 4;
/// Claim, handler and result of each turn: a few answers of nodes.
const RUN: Duration = Duration::from_secs(10 * BATCH / AT_ONCE as u64);

type Booked = Vec<Result<Outcome<Arc<str>>, RunError>>;

pub(super) async fn work(mut task: Task) -> io::Result<()> {
    let keys = task.redlock.idempotency("batches").at_most_once().build();
    let keys = keys.expect("the settings are constants");
    let ledger = Rc::new(Mutex::new(task.ledger.again().await?));
    for n in 0_u64.. {
        task.pause(100..600).await;
        let batch: Arc<str> = format!("batch-{}", now() / SPAN).into();
        let first = task.dice.random_range(0..=KEYS - BATCH);
        let names: Vec<Arc<str>> =
            (first..first + BATCH).map(|k| format!("{batch}.{k}").into()).collect();
        let calls: Vec<_> = names.iter().map(|k| (keys.key(&**k), Arc::clone(k))).collect();
        let (work, who) = (task.millis(0..30), task.who);
        let value = Arc::from(format!("by {}.{}.{n}", who.client, who.life));
        let patience = if task.chance(25) { task.millis(2..300) } else { RUN * 2 };
        let handler = |cx: Context, key: Arc<str>| {
            let effect = book(Rc::clone(&ledger), cx, key, Arc::clone(&value), work);
            // A batch that is dropped stops no line to the ledger halfway.
            let effect = spawn_local(effect);
            async move { effect.await.unwrap_or_else(|e| panic!("{e}")) }
        };
        let call = async { timeout(patience, keys.run_each(calls, AT_ONCE, handler)).await };
        let result = task.verb(Verb::RunEach, &batch, RUN, call, answer).await?;
        let at = now();
        for (key, outcome) in names.into_iter().zip(result.unwrap_or_default()) {
            let Ok(outcome) = outcome else { continue };
            let executed = outcome.is_executed();
            if let Some(value) = outcome.into_value() {
                task.ledger.say_at(at, What::Result { key, value, executed }).await?;
            }
        }
    }
    Ok(())
}

fn answer(result: &Result<Booked, tokio::time::error::Elapsed>) -> Answer {
    let Ok(all) = result else { return Answer::Dropped };
    for outcome in all {
        match outcome {
            Ok(
                Outcome::Executed { .. }
                | Outcome::Replayed(_)
                | Outcome::InFlight { .. }
                | Outcome::Parked(_),
            )
            | Err(RunError::Handler { .. }) => {}
            Err(RunError::NoQuorum { .. } | RunError::NotRecorded(_)) => return Answer::Refused,
            other => panic!("{other:?}"),
        }
    }
    Answer::Done
}

/// The effect. Without its ledger it never ends: this process is about to be over.
async fn book(
    ledger: Rc<Mutex<Ledger>>,
    cx: Context,
    key: Arc<str>,
    value: Arc<str>,
    work: Duration,
) -> Result<Arc<str>, Failed> {
    let token = cx.fencing_token().get();
    let (at, valid) = (now(), cx.is_valid());
    let started = What::Started { key: Arc::clone(&key), token, attempt: cx.attempt(), valid };
    let booked = async {
        ledger.lock().await.say_at(at, started).await?;
        if !valid {
            return Ok(false);
        }
        sleep(work).await;
        ledger.lock().await.yes(Ask::Book { key, token, value: Arc::clone(&value) }).await
    };
    let booked: io::Result<bool> = booked.await;
    match booked {
        Ok(true) => Ok(value),
        Ok(false) => Err(Failed::no_effect("overtaken before anything was booked")),
        Err(_) => std::future::pending().await,
    }
}
