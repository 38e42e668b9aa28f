//! Tests of losses of data on real servers. After a loss, the server cannot tell if some messages
//! were handled before. The consumer holds these messages, and an operator decides about all of
//! them by one call. The ledger of the test counts the effects.

use std::time::{Duration, SystemTime};

use palisade::idempotency::Decision;
use palisade::{Idempotency, RedisNode, Redlock, RedlockBuilder, SentinelNode};
use palisade_consumer::{Consumer, DeadLetterReason, Rules};
use palisade_ops::{Audit, incidents};
use tokio::task::block_in_place;

use super::broker::Broker;
use super::support::group::{Groups, cli};
use super::support::server::Server;
use super::support::wait::until;
use super::{Ledger, booking, empty};

const TTL: Duration = Duration::from_secs(5);
const ERROR: Duration = Duration::from_millis(50);
/// Number of messages that are made after the server has lost data.
const NEW: usize = 20;

fn redlock(builder: RedlockBuilder) -> Redlock {
    let builder = builder.ttl(TTL).max_ttl(TTL).clock_error(ERROR);
    builder.node_deadline(Duration::from_secs(1)).build().unwrap()
}

/// Returns a handle on one server. Another client with `trust_fresh`, which accepts a new server
/// without a wait, has used the server before. So the server grants at once.
async fn lone(server: &Server) -> Redlock {
    let node = |new| RedisNode::builder(server.url()).trust_fresh(new).build().unwrap();
    assert!(redlock(Redlock::builder().node(node(true))).health().await.is_ready());
    redlock(Redlock::builder().node(node(false)))
}

/// An idempotency namespace, a broker, and a ledger that counts the effects.
struct Lab {
    of: Idempotency,
    broker: Broker,
    ledger: Ledger,
}

impl Lab {
    fn new(redlock: &Redlock) -> Self {
        let of = redlock.idempotency("orders").at_most_once().build().unwrap();
        Self { of, broker: Broker::default(), ledger: Ledger::default() }
    }

    fn publish(&self, name: &str, n: usize) {
        (0..n).for_each(|n| self.broker.publish(&format!("{name}-{n}"), "10 GBP"));
    }

    /// Consumes messages until the queue is empty.
    async fn consume(&self) {
        let book = booking(&self.ledger, Duration::ZERO);
        let consumer = Consumer::builder(self.broker.connect().0, self.of.clone());
        let consumer = consumer.rules(Rules::default().concurrency(128)).build().unwrap();
        consumer.run(book, empty(self.broker.clone())).await.unwrap();
    }

    /// Waits until `held` messages wait for an operator's decision, publishes new messages, and
    /// decides about the loss of data as an operator. Checks the effects of the decision.
    async fn decided(&self, held: usize, decision: Decision) {
        let booked = self.ledger.with(1);
        let operate = async {
            until("all are held", || self.of.metrics().held == held as u64).await;
            for n in 0..NEW {
                self.broker.publish_at(&format!("new-{n}"), "10 GBP", SystemTime::now());
            }
            until("the new ones go on", || self.ledger.with(1) == booked + NEW).await;
            until("they are acknowledged", || self.broker.left() == held).await;
            assert_eq!(self.broker.dead(), []);
            let waiting = self.of.health().await.waiting;
            let [waiting] = &waiting[..] else { panic!("{waiting:?}") };
            assert_eq!(waiting.messages, held as u64);
            assert!(waiting.why.contains("palisade idem decide"), "{waiting}");
            let audit = Audit::new("alice", "looked at the ledger").unwrap();
            let seen = incidents(&self.of).await.incidents;
            let [incident] = &seen[..] else { panic!("{seen:?}") };
            for one in incident.decide(&self.of, decision, false, &audit).await.unwrap() {
                assert_eq!((one.stands.decision, one.is_new, one.on), (decision, true, 1));
            }
        };
        tokio::join!(self.consume(), operate);
        assert_eq!(self.of.health().await.waiting, []);
        let (ran, dead) = if decision == Decision::Run { (held, 0) } else { (0, held) };
        assert_eq!(self.ledger.with(1), booked + NEW + ran);
        assert_eq!(self.ledger.with(2), 0, "none twice");
        assert_eq!(self.broker.dead().len(), dead);
        assert!(self.broker.dead().iter().all(|(_, why)| *why == DeadLetterReason::Forgotten));
        assert_eq!((self.broker.left(), self.of.metrics().held), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_messages_of_an_emptied_server_run_by_one_decision() {
    let mut server = Server::start(&[]);
    let lab = Lab::new(&lone(&server).await);
    lab.publish("before", 10);
    lab.consume().await;
    block_in_place(|| server.restart_empty());
    lab.publish("old", 10_000);
    lab.decided(10_000, Decision::Run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_backup_has_is_replayed_and_what_it_lost_is_parked_by_one_decision() {
    let mut server = Server::start(&[]);
    let lab = Lab::new(&lone(&server).await);
    lab.publish("before", 100);
    lab.consume().await;
    assert_eq!(server.cli(&["SAVE"]), "OK");
    lab.publish("lost", 200);
    lab.consume().await;
    assert_eq!(lab.ledger.with(1), 300);
    block_in_place(|| server.restart());
    // The messages `before` and `lost` are delivered a second time, and the messages `old` for the
    // first time.
    lab.publish("before", 100);
    lab.publish("lost", 200);
    lab.publish("old", 300);
    lab.decided(500, Decision::Park).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_failover_run_by_one_decision() {
    let groups = block_in_place(|| Groups::up_with(1, 3_000, 1, &[]));
    let node = SentinelNode::builder(groups.name(0), groups.sentinels(0));
    let node = node.trust_fresh(true).build().unwrap();
    let lab = Lab::new(&redlock(Redlock::builder().node(node)));
    lab.publish("before", 100);
    lab.consume().await;
    let name = groups.name(0);
    let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &name];
    let old = cli(&groups.sentinels(0)[0], &ask).lines().collect::<Vec<_>>().join(":");
    block_in_place(|| groups.break_("failover", 0, &[]));
    // Wait until the old master is a replica, because from then on it accepts no claim.
    until("it follows another one", || {
        block_in_place(|| cli(&old, &["ROLE"])).starts_with("slave")
    })
    .await;
    lab.publish("before", 100);
    lab.publish("old", 500);
    lab.decided(500, Decision::Run).await;
}
