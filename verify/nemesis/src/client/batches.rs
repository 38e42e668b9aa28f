//! A client that runs batches of idempotency keys, each delivered several times. The keys have no
//! probe, and the ledger refuses none of their effects: a key has a single effect only if no second
//! handler starts for it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use palisade::idempotency::{Call, Claimed, Context, ParkedReason};
use palisade::{Failed, Idempotency, Outcome, RunError};
use rand::RngExt as _;
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::{TTL, Task, stall};
use crate::event::{Answer, EventKind, Verb, now};
use crate::wire::{Item, Ledger, LedgerReply, LedgerRequest};

/// Retention of results. It is longer than any run of the nemesis.
const RETENTION: Duration = Duration::from_secs(24 * 3_600);
/// Maximum number of handlers of a batch that run concurrently.
const TURNS: u16 = 3;
/// Maximum time to claim a key and to store its result. Each of the two needs a few replies of the
/// nodes.
const ROUND: Duration = Duration::from_secs(6);
/// Maximum working time of a handler, including its stall.
const WORK: Duration = Duration::from_secs(3);

/// Results of the calls. Each result has the call's index in the batch.
type Outcomes = Vec<(usize, Result<Outcome<Arc<str>>, RunError>)>;

/// Fault of a handler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    None,
    Fails,
    DiesBefore,
    DiesAfter,
    Stalls,
}

/// One batch of idempotency keys.
struct Batch {
    ledger: Rc<Mutex<Ledger>>,
    items: Vec<Item>,
    /// Handler to which the fault of the batch happens, and this fault. The number is the handler's
    /// position in the order in which the handlers of the batch act, from 0.
    struck: (usize, Fate),
    turn: Cell<usize>,
    /// Name of the batch. It is used in events, and is a part of the values that the handlers write
    /// to the ledger, which records effects.
    by: Arc<str>,
    work: Duration,
    died: Notify,
}

pub(super) async fn work(mut task: Task) -> io::Result<()> {
    let keys = task.redlock.idempotency("batches").retention(RETENTION).at_most_once();
    let keys = keys.build().expect("the settings are constants");
    let ledger = Rc::new(Mutex::new(task.ledger.again().await?));
    for n in 0_u64.. {
        task.pause(50..300).await;
        let LedgerReply::Batch(items) = task.ledger.request(LedgerRequest::Batch).await? else {
            continue;
        };
        let fate = match task.dice.random_range(0..100) {
            0..12 => Fate::DiesBefore,
            12..20 => Fate::DiesAfter,
            20..30 => Fate::Fails,
            30 => Fate::Stalls,
            _ => Fate::None,
        };
        let (who, ledger, died) = (task.who, Rc::clone(&ledger), Notify::new());
        let by = Arc::from(format!("batch {}.{}.{}.{n}", who.client, who.life, who.task));
        let struck = (task.dice.random_range(0..items.len().max(1)), fate);
        let (turn, work) = (Cell::new(0), task.millis(1..40));
        let batch = Batch { ledger, items, struck, turn, by, work, died };
        let outcomes = if task.chance(60) {
            Box::pin(task.run_each(&keys, &batch)).await?
        } else {
            Box::pin(task.claim_many(&keys, &batch)).await?
        };
        for (place, outcome) in outcomes {
            let item = &batch.items[place];
            if task.report_outcome(&item.key, outcome).await? && task.chance(40) {
                Box::pin(task.decide(&keys, item, &batch)).await?;
            }
        }
    }
    Ok(())
}

impl Task {
    async fn run_each(&mut self, keys: &Idempotency, batch: &Batch) -> io::Result<Outcomes> {
        self.ledger.report(batch.begin_event(TURNS)).await?;
        let calls = batch.items.iter().map(|item| (call(keys, item), ()));
        let run = keys
            .run_each(calls, usize::from(TURNS), async |cx: Context, ()| batch.handle(&cx).await);
        // In the worst case, the handlers run one after another.
        let within = (ROUND + WORK) * batch.items.len() as u32;
        let answer = |r: &Option<Vec<_>>| r.as_ref().map_or(Answer::Dropped, answer);
        let run = self.verb(Verb::RunEach, &batch.by, within, batch.lives(run), answer);
        let outcomes = Box::pin(run).await?.unwrap_or_default();
        Ok(outcomes.into_iter().enumerate().collect())
    }

    async fn claim_many(&mut self, keys: &Idempotency, batch: &Batch) -> io::Result<Outcomes> {
        self.ledger.report(batch.begin_event(batch.items.len() as u16)).await?;
        let calls: Vec<_> = batch.items.iter().map(|item| call(keys, item)).collect();
        let claim = async {
            let (mut ours, mut outcomes) = (Vec::new(), Vec::new());
            let claimed = keys.claim_many::<Arc<str>>(calls).await;
            for (place, claimed) in claimed.into_iter().enumerate() {
                match claimed {
                    Ok(Claimed::Ours(claim)) => {
                        batch.start(claim.context()).await?;
                        ours.push((place, claim));
                    }
                    Ok(Claimed::Answered(outcome)) => outcomes.push((place, Ok(outcome))),
                    Ok(Claimed::SameAs(_)) => {}
                    Err(e) => outcomes.push((place, Err(e))),
                }
            }
            Ok::<_, io::Error>((ours, outcomes))
        };
        let claim = self.verb(Verb::ClaimMany, &batch.by, ROUND, claim, |r| match r {
            Ok((_, outcomes)) => answer(outcomes.iter().map(|(_, outcome)| outcome)),
            Err(_) => Answer::Dropped,
        });
        let (ours, mut outcomes) = Box::pin(claim).await??;
        let (mut places, mut done) = (Vec::new(), Vec::new());
        for (place, claim) in ours {
            // If a handler dies, all claims without a result are dropped.
            let Some(acted) = batch.lives(batch.act(claim.context())).await else {
                return Ok(outcomes);
            };
            places.push(place);
            done.push((claim, acted));
        }
        let complete = keys.complete_many(done);
        let complete = self.verb(Verb::CompleteMany, &batch.by, ROUND, complete, |r| answer(r));
        outcomes.extend(places.into_iter().zip(Box::pin(complete).await?));
        Ok(outcomes)
    }

    /// Sends to the ledger an event with the outcome of a key's call. Returns true if the key is
    /// parked, which means that an operator has to decide.
    async fn report_outcome(
        &mut self,
        key: &Arc<str>,
        outcome: Result<Outcome<Arc<str>>, RunError>,
    ) -> io::Result<bool> {
        let key = Arc::clone(key);
        let (kind, parked) = match outcome {
            Ok(Outcome::Executed { value, .. }) => {
                (EventKind::Result { key, value, executed: true }, false)
            }
            Ok(Outcome::Replayed(value)) => {
                (EventKind::Result { key, value, executed: false }, false)
            }
            Ok(Outcome::Parked(parked)) => {
                (EventKind::Parked { key, lapsed: parked.reason == ParkedReason::Lapsed }, true)
            }
            // A `retry_after` of zero means: this call claimed the key and lost the claim before
            // its handler began.
            Ok(Outcome::InFlight { retry_after }) if retry_after.is_zero() => {
                (EventKind::Unclear { key }, false)
            }
            Ok(Outcome::InFlight { .. }) | Err(RunError::Handler { .. }) => return Ok(false),
            Err(RunError::NoQuorum { .. } | RunError::NotRecorded(_)) => {
                (EventKind::Unclear { key }, false)
            }
            other => panic!("{key}: {other:?}"),
        };
        self.ledger.report(kind).await?;
        Ok(parked)
    }

    /// Decides about a parked key as an operator would, after reading the ledger, which records the
    /// effects. A handler must not decide this way, because another handler that hangs may act
    /// after the decision.
    async fn decide(&mut self, keys: &Idempotency, item: &Item, of: &Batch) -> io::Result<()> {
        let LedgerReply::Value(effect) =
            self.ledger.request(LedgerRequest::Decide { key: item.key.clone() }).await?
        else {
            return Ok(());
        };
        let key = Arc::clone(&item.key);
        if let Some(value) = effect {
            let resolve = call(keys, item).resolve(&value);
            let answer = |r: &Result<_, RunError>| match r {
                Ok(_) => Answer::Done,
                Err(_) => Answer::Refused,
            };
            let _ = self.verb(Verb::Resolve, &key, ROUND, resolve, answer).await?;
            return Ok(());
        }
        let rerun = call(keys, item).rerun(async |cx: Context| of.handle(&cx).await);
        let answer = |r: &Option<Result<Outcome<Arc<str>>, RunError>>| match r {
            None => Answer::Dropped,
            Some(Ok(Outcome::Executed { .. } | Outcome::Replayed(_))) => Answer::Done,
            Some(Ok(_)) => Answer::Taken,
            Some(Err(RunError::Handler { .. })) => Answer::Lost,
            Some(Err(_)) => Answer::Refused,
        };
        let rerun = self.verb(Verb::Rerun, &key, ROUND + WORK, of.lives(rerun), answer);
        if let Some(outcome) = Box::pin(rerun).await? {
            self.report_outcome(&key, outcome).await?;
        }
        Ok(())
    }
}

/// Returns `Done`, unless too few nodes replied for one of the keys.
fn answer<'a, T: 'a>(all: impl IntoIterator<Item = &'a Result<T, RunError>>) -> Answer {
    let refused = |r: &Result<T, RunError>| {
        matches!(r, Err(RunError::NoQuorum { .. } | RunError::NotRecorded(_)))
    };
    if all.into_iter().any(refused) { Answer::Refused } else { Answer::Done }
}

fn call(keys: &Idempotency, item: &Item) -> Call {
    let made = UNIX_EPOCH + Duration::from_millis(item.made_ms);
    keys.key(&*item.key).fingerprint(&*item.key).created_at(made)
}

impl Batch {
    /// Returns the event for the beginning of the batch. The client reports it before the call.
    fn begin_event(&self, turns: u16) -> EventKind {
        let keys = self.items.iter().map(|item| Arc::clone(&item.key)).collect();
        EventKind::Batch { keys, turns }
    }

    /// Awaits `work`. Returns `None` if a handler of the batch dies first.
    async fn lives<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.died.notified() => None,
        }
    }

    async fn handle(&self, cx: &Context) -> Result<Arc<str>, Failed> {
        match self.start(cx).await {
            Ok(()) => self.act(cx).await,
            // The connection to the ledger is lost, so this process ends soon.
            Err(_) => std::future::pending().await,
        }
    }

    async fn start(&self, cx: &Context) -> io::Result<()> {
        let (key, token) = (cx.key().into(), cx.fencing_token().get());
        let (at, valid) = (now(), cx.is_valid());
        let started = EventKind::Started { key, token, attempt: cx.attempt(), valid };
        self.ledger.lock().await.report_at(at, started).await
    }

    /// Performs the effect and the fault of a handler. An effect that has begun is completed, even
    /// if the batch is dropped meanwhile.
    async fn act(&self, cx: &Context) -> Result<Arc<str>, Failed> {
        let turn = self.turn.replace(self.turn.get() + 1);
        let fate = if turn == self.struck.0 { self.struck.1 } else { Fate::None };
        if fate == Fate::Fails {
            return Err(Failed::no_effect("it failed before it acted"));
        }
        if fate == Fate::DiesBefore {
            self.die().await;
        }
        let (key, token) = (Arc::from(cx.key()), cx.fencing_token().get());
        let value = Arc::from(format!("{key} by {}", self.by));
        let act = LedgerRequest::Act { key, token, value: Arc::clone(&value) };
        let (ledger, work) = (Rc::clone(&self.ledger), self.work);
        let acted = spawn_local(async move {
            sleep(work).await;
            let mut ledger = ledger.lock().await;
            if fate == Fate::Stalls {
                stall(&mut ledger, TTL + Duration::from_millis(300)).await?;
            }
            ledger.request(act).await
        });
        // The connection to the ledger is lost, so this process ends soon.
        if !matches!(acted.await, Ok(Ok(_))) {
            std::future::pending::<()>().await;
        }
        if fate == Fate::DiesAfter {
            self.die().await;
        }
        Ok(value)
    }

    async fn die(&self) {
        self.died.notify_one();
        std::future::pending::<()>().await;
    }
}
