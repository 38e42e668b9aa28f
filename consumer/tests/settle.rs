//! Tests of deliveries that panic outside of their handler, of the log lines of dead letters, and
//! of the names of consumers.

use std::sync::{Arc, Mutex};

use palisade::Failed;
use palisade::error::ConfigError;
use palisade::idempotency::Context;
use palisade_consumer::{BrokerError, Consumer, DeadLetterReason, Disposition, Rules, Terms};
use tokio::time::{sleep, timeout};
use tracing_subscriber::filter::LevelFilter;

use crate::broker::{Broker, Connection, Handed};
use crate::support::idem::{World, secs};
use crate::support::logs::Log;
use crate::{consumer, empty, once};

#[tokio::test(start_paused = true)]
async fn a_delivery_that_panics_fails_and_is_put_aside_in_the_end() {
    let (w, broker) = (World::new(3), Broker::default());
    broker.publish("defect", "10 GBP");
    broker.publish("order-1", "10 GBP");
    let rules = Rules::default().max_failures(3).concurrency(1);
    let (connection, _) = broker.connect();
    let consumer = consumer(&w.redlock, connection, rules);
    let handler = |_: Context, _: Arc<Handed>| async { Ok::<_, Failed>(()) };
    let run = consumer.run(handler, empty(broker.clone()));
    let ended = timeout(secs(600), run).await.expect("it is settled").unwrap();
    assert_eq!((ended.acked, ended.retried, ended.parked), (1, 2, 1), "{ended:?}");
    assert_eq!(broker.dead(), [("defect".to_owned(), DeadLetterReason::Exhausted)]);
    let log = broker.log();
    let Some((_, Disposition::Park(letter))) = log.last() else { panic!("{log:?}") };
    assert!(letter.detail.contains("a defect in the user's function"), "{letter}");
}

#[tokio::test(start_paused = true)]
async fn put_aside_is_logged_when_it_has_happened() {
    let log = Log::of_this_thread(LevelFilter::WARN);
    for (silent, want) in [(true, 0), (false, 1)] {
        let (w, broker) = (World::new(3), Broker::default());
        broker.publish("order-1", "10 GBP");
        let (connection, _) = broker.connect();
        let connection = if silent { connection.silent() } else { connection };
        let consumer = consumer(&w.redlock, connection, Rules::default());
        let handler = move |_: Context, _: Arc<Handed>| async move {
            Err::<(), _>(Failed::permanent(format!("no customer in trial {silent}")))
        };
        consumer.run(handler, sleep(secs(60))).await.unwrap();
        let this = format!("no customer in trial {silent}");
        assert_eq!(log.lines(&["was put aside", &this]).len(), want, "{}", log.text());
        assert_eq!(log.lines(&["is not confirmed", &this]).is_empty(), !silent, "{}", log.text());
    }
}

/// A broker that records the names of all its consumers.
#[derive(Clone, Debug, Default)]
struct Roll(Arc<Mutex<Vec<Arc<str>>>>);

impl palisade_consumer::Broker for Roll {
    type Session = Connection;
    type Delivery = Handed;

    fn check(&self, terms: &Terms) -> Result<(), ConfigError> {
        self.0.lock().unwrap().push(Arc::clone(&terms.name));
        Ok(())
    }

    async fn open(&self, _: &Terms) -> Result<Connection, BrokerError> {
        unreachable!("no consumer runs")
    }
}

/// Names must differ, because a broker delivers the messages of a dead consumer to a consumer with
/// another name.
#[tokio::test(start_paused = true)]
async fn no_two_consumers_have_the_same_name_at_a_broker() {
    let (w, roll) = (World::new(1), Roll::default());
    for _ in 0..3 {
        Consumer::builder(roll.clone(), once(&w.builder(0).build().unwrap())).build().unwrap();
    }
    let mut names = roll.0.lock().unwrap().clone();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3, "{names:?}");
}
