//! Tests of message consumers, with a broker in memory and in virtual time. They check three rules:
//! each message has one effect, even if a process dies at any point; no message is acknowledged too
//! early; no message is left behind.

mod broker;
mod first_day;
mod held;
mod incidents;
mod overtaken;
mod settle;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::{ACK_WAIT, Broker, Connection, Handed};
use futures_util::future::BoxFuture;
use palisade::idempotency::{Context, Status};
use palisade::{Failed, Idempotency, Probed, Redlock};
use palisade_consumer::{ConsumeError, Consumer, DeadLetterReason, Disposition, Rules, probed};
use palisade_testing::delivery::{CrashPoint, CrashPoints, Passing};
use support::idem::{World, secs};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// A downstream system that counts the effects of each key. It refuses a fencing token smaller than
/// an earlier one, and tells a probe (a consumer's check) if a key has an effect.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<BTreeMap<String, (u64, u32)>>>);

impl Ledger {
    fn book(&self, cx: &Context) -> Result<(), Failed> {
        let mut books = self.0.lock().unwrap();
        let (fence, effects) = books.entry(cx.key().to_owned()).or_default();
        if cx.fencing_token().get() < *fence {
            return Err(Failed::no_effect("a larger token was seen"));
        }
        (*fence, *effects) = (cx.fencing_token().get(), *effects + 1);
        Ok(())
    }

    fn probe(&self, cx: &Context) -> Probed<()> {
        let mut books = self.0.lock().unwrap();
        let (fence, effects) = books.entry(cx.key().to_owned()).or_default();
        *fence = cx.fencing_token().get().max(*fence);
        if *effects > 0 { Probed::Found(()) } else { Probed::NotFound }
    }

    /// Returns the number of keys with this number of effects.
    fn with(&self, effects: u32) -> usize {
        self.0.lock().unwrap().values().filter(|(_, n)| *n == effects).count()
    }
}

/// Returns a handler that books each message in the ledger after a pause.
fn booking(
    ledger: &Ledger,
    pause: Duration,
) -> impl Fn(Context, Arc<Handed>) -> BoxFuture<'static, Result<(), Failed>> + use<> {
    let books = ledger.clone();
    move |cx, _| {
        let books = books.clone();
        Box::pin(async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            books.book(&cx)
        })
    }
}

fn once(redlock: &Redlock) -> Idempotency {
    redlock.idempotency("orders").at_most_once().build().unwrap()
}

fn consumer(redlock: &Redlock, from: Connection, rules: Rules) -> Consumer<Connection> {
    Consumer::builder(from, once(redlock)).rules(rules).build().unwrap()
}

/// Waits until the broker's queue is empty.
async fn empty(broker: Broker) {
    while broker.left() > 0 {
        sleep(Duration::from_millis(50)).await;
    }
}

fn after(wait: Duration) -> impl Future<Output = ()> {
    sleep(wait)
}

#[tokio::test(start_paused = true)]
async fn duplicates_have_one_effect_and_all_are_acknowledged() {
    let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
    for n in 0..200 {
        broker.publish(&format!("order-{}", n % 50), "10 GBP");
    }
    let run = |i| {
        let consumer = consumer(&w.handle(i).redlock, broker.connect().0, Rules::default());
        let book = booking(&ledger, Duration::ZERO);
        let stop = empty(broker.clone());
        async move { consumer.run(book, stop).await.unwrap() }
    };
    let (a, b, c) = tokio::join!(run(0), run(1), run(2));
    assert_eq!((ledger.with(1), broker.left(), broker.dead().len()), (50, 0, 0));
    assert_eq!(a.acked + b.acked + c.acked, 200);
    assert_eq!(a.unsettled + b.unsettled + c.unsettled, 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_at_work_elsewhere_is_never_acknowledged() {
    let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
    broker.publish("order-1", "10 GBP");
    broker.publish("order-1", "10 GBP");
    let slow = booking(&ledger, secs(30));
    let consumer = consumer(&w.redlock, broker.connect().0, Rules::default());
    let begun = Instant::now();
    consumer.run(slow, empty(broker.clone())).await.unwrap();
    let log = broker.log();
    let acks = log.iter().filter(|l| l.1 == Disposition::Ack).count();
    let pause = |how: &Disposition| match how {
        Disposition::Retry(wait) => Some(*wait),
        _ => None,
    };
    let waits: Vec<_> = log.iter().filter_map(|l| pause(&l.1)).collect();
    assert_eq!((acks, ledger.with(1)), (2, 1));
    // While the first message is handled, its duplicate is delivered again after pauses that grow
    // to five seconds at most. This is half of the claim's lease.
    assert!((4..12).contains(&waits.len()) && waits[0] <= secs(1), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= secs(5)), "{waits:?}");
    assert!(begun.elapsed() < secs(37), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_of_a_short_handler_waits_for_its_result() {
    let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
    broker.publish("order-1", "10 GBP");
    broker.publish("order-1", "10 GBP");
    let slow = booking(&ledger, secs(1) * 7 / 10);
    let consumer = consumer(&w.redlock, broker.connect().0, Rules::default());
    let ended = consumer.run(slow, empty(broker.clone())).await.unwrap();
    assert_eq!((ended.acked, ended.retried, ledger.with(1)), (2, 0, 1), "{:?}", broker.log());
}

/// The crash point at which a process dies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Death {
    Fetched,
    Claimed,
    Effect,
    Completed,
    Acknowledged,
}

impl Death {
    /// Returns the crash point, if it is in the consumer's own code. Otherwise the crash point is
    /// in the handler, and the handler of the test kills the process.
    fn point(self) -> Option<CrashPoint> {
        match self {
            Self::Fetched => Some(CrashPoint::Fetched),
            Self::Completed => Some(CrashPoint::Completed),
            Self::Acknowledged => Some(CrashPoint::Acknowledged),
            Self::Claimed | Self::Effect => None,
        }
    }
}

/// Runs a process until a first message reaches the crash point `death`. The process then dies: its
/// connections to the broker and to the nodes are cut, and it does nothing more. Panics if no
/// message reaches the crash point.
async fn doomed(w: &World, broker: &Broker, ledger: &Ledger, death: Death) {
    let handle = w.handle(0);
    let (connection, cut) = broker.connect();
    let died = Arc::new(Notify::new());
    let kill = {
        let (died, faults) = (Arc::clone(&died), handle.faults.clone());
        move || {
            cut.store(true, SeqCst);
            faults.iter().for_each(palisade_testing::fault::FaultControl::cut);
            died.notify_one();
        }
    };
    let books = ledger.clone();
    let book = {
        let kill = kill.clone();
        move |cx: Context, _: Arc<Passing<Handed>>| {
            let (books, kill) = (books.clone(), kill.clone());
            async move {
                if death == Death::Claimed {
                    kill();
                    pending::<()>().await;
                }
                books.book(&cx)?;
                if death == Death::Effect {
                    kill();
                    pending::<()>().await;
                }
                Ok::<_, Failed>(())
            }
        }
    };
    let points = CrashPoints::new(connection, move |point| {
        if death.point() == Some(point) {
            kill();
        }
    });
    let consumer = Consumer::builder(points, once(&handle.redlock));
    let consumer = consumer.rules(Rules::default().concurrency(4)).build().unwrap();
    let run = consumer.run(probed(book, |_: Context| async { Probed::Unknown }), pending());
    tokio::select! {
        biased;
        ended = run => panic!("{ended:?}"),
        over = timeout(secs(120), died.notified()) => over.expect("it dies there"),
    }
}

/// Returns the number of orders with a result on the nodes.
async fn stored(redlock: &Redlock) -> usize {
    let mut stored = 0;
    for n in 0..8 {
        let call = once(redlock).key(format!("order-{n}")).fingerprint_bytes(b"10 GBP");
        let status = call.lookup::<()>().await.expect("nodes answer");
        stored += usize::from(status == Status::Stored(()));
    }
    stored
}

#[tokio::test(start_paused = true)]
async fn whatever_dies_at_any_crash_point_each_message_has_one_effect() {
    use Death::{Acknowledged, Claimed, Completed, Effect, Fetched};
    for death in [Fetched, Claimed, Effect, Completed, Acknowledged] {
        let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
        for n in 0..8 {
            broker.publish(&format!("order-{n}"), "10 GBP");
            broker.publish(&format!("order-{n}"), "10 GBP");
        }
        doomed(&w, &broker, &ledger, death).await;
        // Check that the process died at this crash point, neither earlier nor later.
        assert_eq!(ledger.with(1) > 0, !matches!(death, Fetched | Claimed), "{death:?}");
        let is_stored = stored(&w.redlock).await > 0;
        assert_eq!(is_stored, matches!(death, Completed | Acknowledged), "{death:?}");
        assert_eq!(broker.left() < 16, death == Acknowledged, "{death:?}");
        let asked = ledger.clone();
        let consumer = consumer(&w.redlock, broker.connect().0, Rules::default());
        let probe = move |cx: Context| {
            let asked = asked.clone();
            async move { asked.probe(&cx) }
        };
        let book = booking(&ledger, Duration::ZERO);
        let run = consumer.run(probed(book, probe), empty(broker.clone()));
        let ended = timeout(secs(120), run).await.expect("nothing is left behind").unwrap();
        assert_eq!((ledger.with(1), ledger.with(2)), (8, 0), "{death:?}: {ended:?}");
        assert_eq!((broker.left(), broker.dead()), (0, Vec::new()), "{death:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_probe_what_died_in_its_effect_is_put_aside_and_nothing_else() {
    let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
    broker.publish("order-1", "10 GBP");
    broker.publish("order-2", "10 GBP");
    let books = ledger.clone();
    let book = move |cx: Context, message: Arc<Handed>| {
        let books = books.clone();
        async move {
            books.book(&cx)?;
            assert_ne!(message.text(), "", "bodies are handed over");
            assert!(cx.key() != "order-2", "a defect behind the effect");
            Ok::<_, Failed>(())
        }
    };
    let consumer = consumer(&w.redlock, broker.connect().0, Rules::default());
    let ended = consumer.run(book, empty(broker.clone())).await.unwrap();
    assert_eq!(broker.dead(), [("order-2".to_owned(), DeadLetterReason::Lapsed)]);
    assert_eq!((ended.acked, ended.parked, ended.retried), (1, 1, 1), "{ended:?}");
    assert_eq!(ledger.with(1), 2);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_handled_is_put_aside_with_its_reason() {
    let (w, broker) = (World::new(3), Broker::default());
    broker.publish("", "no key");
    broker.publish("refused", "x");
    broker.publish("fails", "x");
    broker.publish("twice", "10 GBP");
    broker.publish("twice", "7000 GBP");
    let tries = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&tries);
    let handler = move |cx: Context, _: Arc<Handed>| {
        let seen = Arc::clone(&seen);
        async move {
            match cx.key() {
                "refused" => Err(Failed::permanent("no such customer")),
                "fails" => {
                    seen.fetch_add(1, SeqCst);
                    Err(Failed::no_effect("the bank is closed"))
                }
                _ => Ok(()),
            }
        }
    };
    let rules = Rules::default().max_failures(3).concurrency(1);
    let consumer = consumer(&w.redlock, broker.connect().0, rules);
    consumer.run(handler, empty(broker.clone())).await.unwrap();
    let mut dead = broker.dead();
    dead.sort();
    let want = [
        ("", DeadLetterReason::Unreadable),
        ("fails", DeadLetterReason::Exhausted),
        ("refused", DeadLetterReason::Refused),
        ("twice", DeadLetterReason::Mismatch),
    ];
    assert_eq!(dead, want.map(|(key, why)| (key.to_owned(), why)));
    assert_eq!(tries.load(SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_runs_and_leaves_the_rest_to_others() {
    let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
    for n in 0..20 {
        broker.publish(&format!("order-{n}"), "10 GBP");
    }
    let slow = booking(&ledger, secs(2));
    let consumer = consumer(&w.redlock, broker.connect().0, Rules::default().concurrency(4));
    let ended = consumer.run(slow, after(secs(1))).await.unwrap();
    assert_eq!((ended.acked, ended.unfinished, ledger.with(1)), (4, 0, 4), "{ended:?}");
    assert_eq!((broker.left(), broker.closed()), (16, 1));
}

#[tokio::test(start_paused = true)]
async fn what_outlasts_the_grace_is_finished_and_comes_again_as_a_duplicate() {
    let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
    broker.publish("order-1", "10 GBP");
    let impatient = consumer(&w.redlock, broker.connect().0, Rules::default().grace(secs(1)));
    let ended = impatient.run(booking(&ledger, secs(4)), after(secs(1))).await.unwrap();
    assert_eq!((ended.acked, ended.unfinished, broker.left()), (0, 1, 1), "{ended:?}");
    let again = consumer(&w.redlock, broker.connect().0, Rules::default());
    again.run(booking(&ledger, Duration::ZERO), empty(broker.clone())).await.unwrap();
    assert_eq!((ledger.with(1), ledger.with(2), broker.dead().len()), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_consumer_cancels_no_handler() {
    let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
    broker.publish("order-1", "10 GBP");
    let slow = booking(&ledger, secs(3));
    let consumer = consumer(&w.redlock, broker.connect().0, Rules::default());
    let run = consumer.run(slow, pending());
    assert!(timeout(secs(1), run).await.is_err(), "it runs until it is dropped");
    sleep(secs(5)).await;
    assert_eq!((ledger.with(1), broker.left()), (1, 1));
    let stands = once(&w.redlock).key("order-1").lookup::<()>().await.unwrap();
    assert_eq!(stands, palisade::idempotency::Status::Stored(()));
}

#[tokio::test(start_paused = true)]
async fn a_long_handler_keeps_its_message() {
    let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
    broker.publish("order-1", "10 GBP");
    let slow = booking(&ledger, 6 * ACK_WAIT);
    let consumer = consumer(&w.redlock, broker.connect().0, Rules::default());
    let ended = consumer.run(slow, empty(broker.clone())).await.unwrap();
    assert_eq!((ended.delivered, ended.acked, ledger.with(1)), (1, 1, 1), "{ended:?}");
    assert!(broker.extended() >= 12, "{} heartbeats", broker.extended());
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_refuses_for_good_ends_the_consumer_with_its_words() {
    let (w, broker) = (World::new(3), Broker::default());
    let consumer = consumer(&w.redlock, broker.connect().0.refused(), Rules::default());
    let run = consumer.run(|_, _| async { Ok::<_, Failed>(()) }, pending());
    let ended = timeout(secs(60), run).await.expect("it ends by itself");
    let Err(ConsumeError::Broker { error, .. }) = ended else { panic!("{ended:?}") };
    assert!(error.to_string().contains("this user may not read the queue"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn no_more_is_fetched_than_can_be_handled_at_once() {
    let (w, broker) = (World::new(3), Broker::default());
    for n in 0..30 {
        broker.publish(&format!("order-{n}"), "10 GBP");
    }
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (running, highest) = (Arc::clone(&now), Arc::clone(&most));
    let handler = move |_: Context, _: Arc<Handed>| {
        let (running, highest) = (Arc::clone(&running), Arc::clone(&highest));
        async move {
            highest.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
            sleep(Duration::from_millis(200)).await;
            running.fetch_sub(1, SeqCst);
            Ok::<_, Failed>(())
        }
    };
    let consumer = consumer(&w.redlock, broker.connect().0, Rules::default().concurrency(5));
    consumer.run(handler, empty(broker.clone())).await.unwrap();
    assert_eq!(most.load(SeqCst), 5);
    assert!(broker.log().iter().all(|(_, how)| *how == Disposition::Ack));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_does_not_answer_delays_the_end_of_the_consumer_only_briefly() {
    let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
    broker.publish("order-1", "10 GBP");
    let book = booking(&ledger, Duration::ZERO);
    let begun = Instant::now();
    let rules = Rules::default().grace(secs(60)).concurrency(1);
    let consumer = consumer(&w.redlock, broker.connect().0.silent(), rules);
    let ended = consumer.run(book, after(secs(1))).await.unwrap();
    assert!(begun.elapsed() < secs(40), "{:?}", begun.elapsed());
    assert_eq!((ended.unsettled, ended.acked, ledger.with(1)), (1, 0, 1), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn what_no_message_can_get_past_ends_the_consumer_and_loses_nothing() {
    let (w, broker) = (World::new(3), Broker::default());
    broker.publish("order-1", "10 GBP");
    let closed = w.handle(0);
    let _ = closed.redlock.close(secs(1)).await;
    let ran = Arc::new(AtomicBool::new(false));
    let handler = {
        let ran = Arc::clone(&ran);
        move |_: Context, _: Arc<Handed>| {
            ran.store(true, SeqCst);
            async { Ok::<_, Failed>(()) }
        }
    };
    let consumer = consumer(&closed.redlock, broker.connect().0, Rules::default());
    let run = timeout(secs(10), consumer.run(handler, pending()));
    match run.await.expect("it ends by itself") {
        Err(ConsumeError::Stopped { why, ended, .. }) => {
            assert!(why.contains("\"orders:order-1\""), "{why}");
            assert!(ended.retried >= 1 && ended.acked == 0, "{ended:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!ran.load(SeqCst));
    assert_eq!(broker.left(), 1);
}
