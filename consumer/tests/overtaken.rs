//! Tests of a consumer that is paused in its handler or its probe for longer than its lease.
//! Another consumer takes over. Whatever the paused one answers then, the message is the other
//! one's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use palisade::idempotency::Context;
use palisade::{Failed, Idempotency, Probed, Redlock};
use palisade_consumer::{Consumer, Disposition, Rules, probed};
use palisade_testing::fault::FaultControl;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::broker::{Broker, Connection, Handed};
use crate::empty;
use crate::support::idem::{World, secs};

/// A value of this type with an entry cannot be stored as JSON.
type Value = BTreeMap<(u8, u8), u8>;
type Answer = fn() -> Result<Value, Failed>;

const ANSWERS: [(&str, Answer); 6] = [
    ("refused for good", || Err(Failed::permanent("no such customer"))),
    ("without effect, the last allowed failure", || Err(Failed::no_effect("closed"))),
    ("repeatable, the last allowed failure", || Err(Failed::retry("closed"))),
    ("unknown, the last allowed failure", || Err(Failed::unknown("closed"))),
    ("a result", || Ok(Value::new())),
    ("a value that cannot be stored", || Ok(Value::from([((1, 2), 3)]))),
];

fn consumer(of: Idempotency, from: Connection) -> Consumer<Connection> {
    let rules = Rules::default().max_failures(2).concurrency(1);
    Consumer::builder(from, of).rules(rules).build().unwrap()
}

fn at_least_once(redlock: &Redlock) -> Idempotency {
    redlock.idempotency("orders").at_least_once().build().unwrap()
}

/// The paused consumer fails once, without effect, and is paused in its second delivery. `running`:
/// the other handler still runs when the paused one ends. `heard`: the nodes answer the paused
/// consumer when it ends.
async fn paused(answer: Answer, running: bool, heard: bool) -> (Broker, u32) {
    let (w, broker) = (World::new(3), Broker::default());
    let (late, soon) = (w.handle(0), w.handle(1));
    let (started, begun) = oneshot::channel();
    let (let_go, gone) = oneshot::channel::<()>();
    let once = Arc::new(Mutex::new(Some((started, gone))));
    let tries = Arc::new(AtomicU32::new(0));
    let faults = late.faults.clone();
    let slow = move |_: Context, _: Arc<Handed>| {
        let (once, faults) = (Arc::clone(&once), faults.clone());
        let first = tries.fetch_add(1, SeqCst) == 0;
        async move {
            if first {
                return Err(Failed::no_effect("the bank is closed"));
            }
            let taken = once.lock().unwrap().take();
            let (started, gone) = taken.expect("the paused handler is not run again");
            faults.iter().for_each(FaultControl::cut);
            let _ = started.send(());
            let _ = gone.await;
            if heard {
                faults.iter().for_each(FaultControl::heal);
            }
            answer()
        }
    };
    let over = {
        let broker = broker.clone();
        move || {
            let broker = broker.clone();
            async move {
                let before = broker.log().len();
                while broker.log().len() == before {
                    sleep(secs(1) / 10).await;
                }
            }
        }
    };
    let effects = Arc::new(AtomicU32::new(0));
    let (runs, ran) = oneshot::channel();
    let (counted, waits) = (Arc::clone(&effects), Arc::new(Mutex::new(Some(runs))));
    let book = move |cx: Context, _: Arc<Handed>| {
        let (counted, over) = (Arc::clone(&counted), over.clone());
        let runs = waits.lock().unwrap().take();
        async move {
            assert_eq!(cx.attempt(), 2);
            let _ = runs.expect("it runs once").send(());
            if running {
                over().await;
            }
            counted.fetch_add(1, SeqCst);
            Ok::<_, Failed>(Value::new())
        }
    };
    let (a, b) = (broker.connect().0, broker.connect().0);
    let (a, b) =
        (consumer(at_least_once(&late.redlock), a), consumer(at_least_once(&soon.redlock), b));
    broker.publish("order-1", "10 GBP");
    let a = a.run(slow, empty(broker.clone()));
    let after = async {
        begun.await.unwrap();
        broker.publish("order-1", "10 GBP");
        let b = b.run(book, empty(broker.clone()));
        let go = async {
            ran.await.unwrap();
            let is_acked = |log: Vec<(String, Disposition)>| {
                log.iter().any(|(_, how)| matches!(how, Disposition::Ack))
            };
            while !running && !is_acked(broker.log()) {
                sleep(secs(1) / 10).await;
            }
            let_go.send(()).unwrap();
            sleep(secs(40)).await;
            late.faults.iter().for_each(FaultControl::heal);
        };
        tokio::join!(b, go).0.unwrap()
    };
    let both = async { tokio::join!(a, after) };
    let Ok((a, b)) = timeout(secs(600), both).await else {
        panic!("running {running}, heard {heard}: {:?}, {} left", broker.log(), broker.left())
    };
    let a = a.unwrap();
    assert_eq!((a.acked + b.acked, a.parked + b.parked), (2, 0), "{a:?} {b:?}");
    (broker, effects.load(SeqCst))
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ends_after_its_claim_was_lost_puts_nothing_aside() {
    for (what, answer) in ANSWERS {
        for running in [true, false] {
            for heard in [true, false] {
                let (broker, effects) = paused(answer, running, heard).await;
                let case = format!("{what}, running {running}, heard {heard}");
                assert_eq!((effects, broker.dead().len(), broker.left()), (1, 0, 0), "{case}");
                let log = broker.log();
                let parked = log.iter().any(|(_, how)| matches!(how, Disposition::Park(_)));
                assert!(!parked, "{case}: {log:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_ends_after_its_claim_was_lost_puts_nothing_aside() {
    let (w, broker) = (World::new(3), Broker::default());
    let (late, soon) = (w.handle(0), w.handle(1));
    let of = |redlock: &Redlock| redlock.idempotency("orders").at_most_once().build().unwrap();
    let died = of(&soon.redlock).key("order-1").fingerprint_bytes(b"10 GBP");
    let died = died.run(|_| async { Err::<Value, _>(Failed::unknown("died in its effect")) });
    assert!(died.await.is_err());
    let ran = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&ran);
    let book = move |_: Context, _: Arc<Handed>| {
        counted.fetch_add(1, SeqCst);
        async { Ok::<_, Failed>(Value::new()) }
    };
    let (started, begun) = oneshot::channel();
    let (let_go, gone) = oneshot::channel::<()>();
    let once = Arc::new(Mutex::new(Some((started, gone))));
    let faults = late.faults.clone();
    let slow = move |_: Context| {
        let taken = once.lock().unwrap().take();
        let faults = faults.clone();
        async move {
            let (started, gone) = taken.expect("the key has a result then");
            faults.iter().for_each(FaultControl::cut);
            let _ = started.send(());
            let _ = gone.await;
            faults.iter().for_each(FaultControl::heal);
            Probed::<Value>::Unknown
        }
    };
    let found = |_: Context| async { Probed::Found(Value::new()) };
    let (a, b) = (broker.connect().0, broker.connect().0);
    let (a, b) = (consumer(of(&late.redlock), a), consumer(of(&soon.redlock), b));
    broker.publish("order-1", "10 GBP");
    let a = a.run(probed(book.clone(), slow), empty(broker.clone()));
    let after = async {
        begun.await.unwrap();
        broker.publish("order-1", "10 GBP");
        let one_left = async {
            while broker.left() > 1 {
                sleep(secs(1) / 10).await;
            }
        };
        b.run(probed(book, found), one_left).await.unwrap();
        let_go.send(()).unwrap();
    };
    let both = async { tokio::join!(a, after) };
    let (a, ()) = timeout(secs(600), both).await.expect("nothing is left behind");
    assert_eq!((a.unwrap().acked, broker.dead(), broker.left()), (1, Vec::new(), 0));
    assert_eq!(ran.load(SeqCst), 0, "no handler runs");
}
