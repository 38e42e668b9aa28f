//! Orders: work with idempotency keys, given to clients more than once. Some handlers die before or
//! after their effect, stall, or are overtaken. A probe asks the ledger for the effect.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use palisade::idempotency::Context;
use palisade::{Failed, Idempotency, Outcome, Probed, RunError};
use rand::RngExt as _;
use tokio::sync::{Mutex, Notify};
use tokio::time::sleep;

use super::{TTL, Task, stall};
use crate::event::{Answer, EventKind, Verb, now};
use crate::wire::{Ledger, LedgerReply, LedgerRequest};

/// Retention of results. It is longer than any run of the nemesis.
const RETENTION: Duration = Duration::from_secs(24 * 3_600);
/// Maximum time for claim, probe, handler and result of an order. Each of these needs a few replies
/// of the nodes.
const RUN: Duration = Duration::from_secs(10);

/// Fault of a handler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    None,
    DiesBefore,
    DiesAfter,
    Stalls,
}

struct Delivery {
    ledger: Rc<Mutex<Ledger>>,
    key: Arc<str>,
    value: Arc<str>,
    fate: Fate,
    work: Duration,
    died: Notify,
}

pub(super) async fn work(mut task: Task) -> io::Result<()> {
    let orders = task
        .redlock
        .idempotency("orders")
        .retention(RETENTION)
        .at_most_once()
        .build()
        .expect("the settings are constants");
    // The handler and the probe share a second connection to the ledger, because the running call
    // borrows the task's own connection.
    let ledger = Rc::new(Mutex::new(task.ledger.again().await?));
    for n in 0_u64.. {
        task.pause(10..90).await;
        let LedgerReply::Value(Some(key)) = task.ledger.request(LedgerRequest::Next).await? else {
            task.pause(100..200).await;
            continue;
        };
        let fate = match task.dice.random_range(0..100) {
            0..4 => Fate::DiesBefore,
            4..8 => Fate::DiesAfter,
            8 => Fate::Stalls,
            _ => Fate::None,
        };
        let work = if task.chance(5) { task.millis(500..2_500) } else { task.millis(1..30) };
        let (who, ledger, died) = (task.who, Rc::clone(&ledger), Notify::new());
        let value = Arc::from(format!("{key} by {}.{}.{}.{n}", who.client, who.life, who.task));
        let delivery = Delivery { ledger, key, value, fate, work, died };
        Box::pin(task.deliver(&orders, &delivery)).await?;
    }
    Ok(())
}

impl Task {
    async fn deliver(&mut self, orders: &Idempotency, order: &Delivery) -> io::Result<()> {
        let run = orders
            .key(&*order.key)
            .fingerprint(&*order.key)
            .probe(async |cx: Context| order.probe(&cx).await)
            .run(async |cx: Context| order.handle(&cx).await);
        let call = async {
            tokio::select! {
                biased;
                outcome = run => Some(outcome),
                // This fault imitates a kill of the handler's process, so the call is dropped in
                // the middle of the handler.
                () = order.died.notified() => None,
            }
        };
        let answer = |r: &Option<Result<Outcome<Arc<str>>, RunError>>| match r {
            None => Answer::Dropped,
            Some(Ok(Outcome::Executed { .. } | Outcome::Replayed(_))) => Answer::Done,
            Some(Ok(Outcome::InFlight { .. })) => Answer::Taken,
            Some(Err(RunError::Handler { .. })) => Answer::Lost,
            Some(Err(RunError::NoQuorum { .. } | RunError::NotRecorded(_))) => Answer::Refused,
            Some(other) => panic!("{}: {other:?}", order.key),
        };
        let run = self.verb(Verb::Run, &order.key, RUN + order.work, call, answer);
        let result = Box::pin(run).await?;
        let at = now();
        if let Some(Ok(outcome)) = result {
            let executed = outcome.is_executed();
            if let Some(value) = outcome.into_value() {
                let key = Arc::clone(&order.key);
                self.ledger.report_at(at, EventKind::Result { key, value, executed }).await?;
                self.ledger.request(LedgerRequest::Settle { key: Arc::clone(&order.key) }).await?;
            }
        }
        Ok(())
    }
}

impl Delivery {
    /// Runs the handler. If the connection to the ledger is lost, this process ends soon, so the
    /// handler waits for ever.
    async fn handle(&self, cx: &Context) -> Result<Arc<str>, Failed> {
        match self.act(cx).await {
            Ok(true) => Ok(Arc::clone(&self.value)),
            Ok(false) => Err(Failed::no_effect("overtaken before anything was booked")),
            Err(_) => std::future::pending().await,
        }
    }

    /// Books the order: asks the ledger to record its effect. Returns true if the ledger accepted
    /// the booking.
    async fn act(&self, cx: &Context) -> io::Result<bool> {
        let (key, token) = (Arc::clone(&self.key), cx.fencing_token().get());
        let (at, valid) = (now(), cx.is_valid());
        let started =
            EventKind::Started { key: Arc::clone(&key), token, attempt: cx.attempt(), valid };
        let mut ledger = self.ledger.lock().await;
        ledger.report_at(at, started).await?;
        if !valid {
            return Ok(false);
        }
        sleep(self.work).await;
        if self.fate == Fate::DiesBefore {
            return self.die().await;
        }
        if self.fate == Fate::Stalls {
            stall(&mut ledger, TTL + Duration::from_millis(300)).await?;
        }
        let booked = ledger
            .accepts(LedgerRequest::Book { key, token, value: Arc::clone(&self.value) })
            .await?;
        if self.fate == Fate::DiesAfter {
            return self.die().await;
        }
        Ok(booked)
    }

    async fn die(&self) -> io::Result<bool> {
        self.died.notify_one();
        std::future::pending().await
    }

    async fn probe(&self, cx: &Context) -> Probed<Arc<str>> {
        let request =
            LedgerRequest::Probe { key: Arc::clone(&self.key), token: cx.fencing_token().get() };
        match self.ledger.lock().await.request(request).await {
            Ok(LedgerReply::Value(Some(value))) => Probed::Found(value),
            Ok(LedgerReply::Value(None)) => Probed::NotFound,
            _ => std::future::pending().await,
        }
    }
}
