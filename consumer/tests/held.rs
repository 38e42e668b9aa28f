//! Tests of messages that are held after a loss of data. If the nodes cannot tell if a message was
//! handled before the loss, the consumer does not handle it. The message waits at the broker until
//! an operator decides about the loss (rule consumers 12 in docs/design).

use std::time::Duration;

use palisade::Failed;
use palisade::idempotency::Decision;
use palisade_consumer::{Consumer, DeadLetterReason, Rules};
use palisade_ops::{Audit, incidents};
use tokio::time::sleep;
use tracing_subscriber::filter::LevelFilter;

use super::broker::Broker;
use super::support::idem::{World, at, secs};
use super::support::logs::Log;
use super::{Ledger, booking, consumer, empty, once};

/// Makes two of three nodes lose their data. The messages from before the loss are held (they wait
/// for an operator's decision), and later messages are handled. One decision of an operator ends
/// the hold for all messages.
async fn held(decision: Decision) {
    let log = Log::of_this_thread(LevelFilter::INFO);
    let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
    let of = once(&w.redlock);
    assert!(of.key("old-0").run(|_| async { Ok::<_, Failed>(()) }).await.unwrap().is_executed());
    w.nodes[..2].iter().for_each(palisade::MemoryNode::restart_empty);
    let _ = of.key("look").lookup::<()>().await;
    sleep(secs(60)).await;
    for n in 0..300 {
        broker.publish(&format!("old-{n}"), "10 GBP");
    }
    let book = booking(&ledger, Duration::ZERO);
    let consumer = Consumer::builder(broker.connect().0, of.clone());
    let consumer = consumer.rules(Rules::default().concurrency(8)).build().unwrap();
    let consume = consumer.run(book, empty(broker.clone()));
    let operate = async {
        sleep(secs(300)).await;
        assert_eq!((of.metrics().held, broker.left(), broker.dead().len()), (300, 300, 0));
        // While the old messages are held, the consumer handles a message that was made after the
        // nodes lost their data.
        broker.publish_at("new", "10 GBP", at(w.now()));
        sleep(secs(1)).await;
        assert_eq!((broker.left(), ledger.with(1)), (300, 1));
        let audit = Audit::new("alice", "looked at the ledger").unwrap();
        let incident = incidents(&of).await.incidents.pop().expect("a loss");
        let _ = incident.decide(&of, decision, false, &audit).await.unwrap();
    };
    let (ended, ()) = tokio::join!(consume, operate);
    let ended = ended.unwrap();
    // The third node lost no data, and has the result of the message `old-0`. So if the operator
    // decides that the held messages run, the consumer does not run this message again.
    let (booked, dead) = if decision == Decision::Run { (300, 0) } else { (1, 300) };
    assert_eq!((ledger.with(1), broker.dead().len()), (booked, dead), "{ended:?}");
    assert!(broker.dead().iter().all(|(_, why)| *why == DeadLetterReason::Forgotten));
    assert_eq!((of.metrics().held, broker.left()), (0, 0));
    // After the first minute, each held message is delivered at most once in 45 s.
    assert!(ended.retried < 300 * 16, "{ended:?}");
    let logged = |words: &str| log.lines(&["palisade::consumer", words]).len();
    let reports = logged("held=");
    assert!((4..=8).contains(&reports), "{reports} reports in six minutes");
    assert_eq!(logged("messages are held until an operator decides"), reports + 1, "one begins it");
    assert_eq!(logged("no message is held any more"), 1);
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_loss_are_held_until_it_is_decided_to_run() {
    held(Decision::Run).await;
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_loss_are_held_until_it_is_decided_to_park() {
    held(Decision::Park).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_lost_their_data_know_of_messages_made_later() {
    let (w, broker, ledger) = (World::new(3), Broker::default(), Ledger::default());
    assert!(once(&w.redlock).key("none").lookup::<()>().await.is_ok());
    w.nodes.iter().for_each(palisade::MemoryNode::restart_empty);
    assert!(once(&w.redlock).key("first").run(|_| async { Ok::<_, Failed>(()) }).await.is_err());
    sleep(secs(60)).await;
    broker.publish("order-1", "10 GBP");
    broker.publish("order-2", "10 GBP");
    let book = || booking(&ledger, Duration::ZERO);
    // These two messages were made a moment ago, after the nodes lost their data. So no consumer
    // can have handled them before.
    let connection = broker.connect().0.created(at(w.now()));
    let one = consumer(&w.redlock, connection, Rules::default().concurrency(1));
    one.run(book(), empty(broker.clone())).await.unwrap();
    assert_eq!((ledger.with(1), broker.dead().len()), (2, 0));
    // This message has no creation time (birth), so it may be older than the loss. With
    // `park_forgotten` it becomes a dead letter instead of being held.
    broker.publish("order-3", "10 GBP");
    let parks = consumer(&w.redlock, broker.connect().0, Rules::default().park_forgotten());
    parks.run(book(), empty(broker.clone())).await.unwrap();
    assert_eq!(broker.dead(), [("order-3".to_owned(), DeadLetterReason::Forgotten)]);
}
