//! Functions that all test cases of the contract suite share: new names, calls, waits, and panics
//! that contain the broken rule.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use palisade::error::{NodeError, NodeFault};

use palisade::node::spi::{
    BarrierPoint, Batch, Env, Facts, LockKeys, LockNode, NodeSignal, NotAfter, Op, OwnerToken,
    RecordKey, Remembered, Replies, Reply, SystemEnv, Terms,
};
use palisade::{Durability, FencingToken};
use tokio::time::sleep;

use super::{Hooks, ops};

/// Length of a lease that does not end while a case runs.
pub(super) const LONG: Duration = Duration::from_secs(60);
/// Length of a short lease. A case waits for the end of such a lease.
pub(super) const SHORT: Duration = Duration::from_millis(150);
/// A server keeps the ends of readers and of slots in whole milliseconds, rounded up.
pub(super) const ROUNDED: Duration = Duration::from_millis(1);
/// Retention of a record. No case waits for its end.
pub(super) const KEEP: Duration = Duration::from_secs(600);
/// Largest permitted fencing token.
pub(super) const TOKEN_MAX: u64 = (1 << 53) - 1;

const POLL: Duration = Duration::from_millis(20);
/// Largest number of polls. The longest wait for an event is `POLL` times this number.
const POLLS: u32 = 3_000;

/// The node under test, with the functions that one case uses.
pub(super) struct Bench {
    case: &'static str,
    node: Arc<dyn LockNode>,
    env: SystemEnv,
    pub(super) hooks: Hooks,
    pub(super) terms: Terms,
    /// Time (µs, by the node's clock) at which the client of this bench first saw a marker, a
    /// record in which the node stores its data history. The bench sends this time with each batch,
    /// as [`Remembered::known_since`].
    known_since: Option<u64>,
}

impl Bench {
    pub(super) fn new(
        case: &'static str,
        disturbs: bool,
        node: Arc<dyn LockNode>,
        hooks: Hooks,
    ) -> Self {
        // A case that causes a quarantine (a time after a loss of data in which the node grants
        // nothing) waits for its end. So the quarantine must be short.
        let (max_ttl, clock_error) = if disturbs {
            (Duration::from_secs(1), Duration::from_millis(250))
        } else {
            // The cases must not wait for longer than E between two ops, also on a busy machine.
            (LONG, Duration::from_secs(2))
        };
        let terms = Terms { max_ttl, clock_error };
        Self { case, node, env: SystemEnv, hooks, terms, known_since: None }
    }

    /// Waits until the node is not in quarantine, the time after a loss of data in which it grants
    /// nothing.
    pub(super) async fn settle(&self) {
        // The loop runs at least as long as the longest quarantine (time without grants) of a
        // server under test.
        for _ in 0..10_000 {
            let rest = self.facts().await.quarantine;
            if rest.is_zero() {
                return;
            }
            sleep(rest.min(Duration::from_secs(1)) + Duration::from_millis(1)).await;
        }
        self.broken("a quarantine ends", &"still in quarantine");
    }

    /// Returns the same bench with other bounds (longest lease and clock error). Cases use short
    /// bounds, so that the node soon removes a record.
    pub(super) fn with_terms(self, max_ttl: Duration, clock_error: Duration) -> Self {
        Self { terms: Terms { max_ttl, clock_error }, ..self }
    }

    /// Returns the bench of another client of the same node, which has its own bounds.
    pub(super) fn beside(&self, max_ttl: Duration, clock_error: Duration) -> Self {
        let (node, hooks) = (Arc::clone(&self.node), self.hooks.clone());
        Self::new(self.case, true, node, hooks).with_terms(max_ttl, clock_error)
    }

    /// Returns the same test bench, but as another client. This client first saw a marker (the
    /// record of the node's data history) when the node's clock had the value `known_since`.
    pub(super) fn knowing(self, known_since: Option<u64>) -> Self {
        Self { known_since, ..self }
    }

    pub(super) async fn send(&self, ops: Vec<Op>) -> Replies {
        self.send_until(ops, None).await
    }

    /// Sends operations that must not take effect after `not_after`.
    pub(super) async fn send_until(&self, ops: Vec<Op>, not_after: Option<NotAfter>) -> Replies {
        let (n, terms, known_since) = (ops.len(), self.terms, self.known_since);
        for _ in 1..POLLS {
            let deadline = self.env.now() + Duration::from_secs(10);
            let (not_after, ops) = (not_after.clone(), ops.clone());
            let remembers = Remembered { known_since, ..Remembered::default() };
            let batch = Batch { terms, not_after, remembers, ops };
            let replies = self.node.call(batch, deadline).await;
            self.check(replies.items.len() == n, "one reply per op", &replies.items.len());
            // After a restart, the node may for a moment fail to connect, or the server may still
            // load its data. In both cases the server executed no operation of the batch, and the
            // batch is sent again.
            let refused = |e: &NodeError| {
                let passing = matches!(e.fault(), NodeFault::Unreachable | NodeFault::Loading);
                passing && !e.is_ambiguous()
            };
            if !replies.items.first().is_some_and(|r| r.as_ref().is_err_and(refused)) {
                return replies;
            }
            sleep(POLL).await;
        }
        self.broken("a node that was restarted is reached again", &"unreachable")
    }

    pub(super) async fn all(&self, ops: Vec<Op>) -> Vec<Reply> {
        let items = self.send(ops).await.items;
        items.into_iter().map(|r| r.unwrap_or_else(|e| self.broken("no fault", &e))).collect()
    }

    pub(super) async fn ask(&self, op: Op) -> Reply {
        self.all(vec![op]).await.remove(0)
    }

    /// Sends an operation, and checks that the reply is `want`.
    pub(super) async fn expect(&self, op: Op, want: Reply, rule: &str) {
        let got = self.ask(op).await;
        self.check(got == want, rule, &got);
    }

    /// Sends an operation that must be granted, and returns the fencing token of the grant.
    pub(super) async fn granted(&self, op: Op, rule: &str) -> u64 {
        match self.ask(op).await {
            Reply::Granted { fence }
            | Reply::Permit { fence, .. }
            | Reply::Claimed { fence, .. } => fence,
            other => self.broken(rule, &other),
        }
    }

    pub(super) async fn facts(&self) -> Facts {
        let op = ops::lookup(&self.key());
        let mut replies = self.send(vec![op.clone()]).await;
        // After a restart, the old connection may be broken, and only the next request detects
        // this. So one request may fail.
        let lost = |e: &NodeError| e.fault() == NodeFault::Disconnected;
        if matches!(&replies.items[..], [Err(e)] if lost(e)) {
            replies = self.send(vec![op]).await;
        }
        replies.facts.unwrap_or_else(|| self.broken("facts come with each batch", &replies.items))
    }

    /// Calls the node's barrier, which waits until replicas have a grant. Checks that the answer
    /// arrives in time.
    pub(super) async fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
    ) -> Result<u32, NodeError> {
        let limit = Duration::from_secs(5);
        let asked = self.node.barrier(after, level, self.env.now() + limit);
        match tokio::time::timeout(2 * limit, asked).await {
            Ok(answer) => answer,
            Err(_) => self.broken("a barrier is answered by its deadline", &"nothing"),
        }
    }

    /// Returns the smallest fencing token that the node now gives to a new name: the node's clock
    /// minus `clock_error`. After a quarantine no token is below the floor, a number that the node
    /// sets after a loss of data. So the function waits until the node's clock has passed the
    /// floor.
    pub(super) async fn low(&self) -> u64 {
        for _ in 0..POLLS {
            let op = ops::acquire_at(&self.lock(), self.owner(), SHORT, 0);
            let low = self.granted(op, "a fresh name is free").await;
            if low <= self.facts().await.node_micros {
                return low;
            }
            sleep(POLL).await;
        }
        self.broken("a node's clock passes its floor", &"still below it")
    }

    /// Returns a fencing token for a proposal of a client with a correct clock. The token is larger
    /// than any token that the node itself would give now.
    pub(super) async fn high(&self) -> FencingToken {
        let error = self.terms.clock_error.as_micros() as u64;
        let now = self.facts().await.node_micros;
        FencingToken::new((now + 2 * error).max(self.low().await) + error / 2)
    }

    /// Repeats the operation until `good` returns true for the reply, and returns that reply.
    pub(super) async fn until(&self, rule: &str, op: Op, good: impl Fn(&Reply) -> bool) -> Reply {
        let mut last = None;
        for _ in 0..POLLS {
            let reply = self.ask(op.clone()).await;
            if good(&reply) {
                return reply;
            }
            last = Some(reply);
            sleep(POLL).await;
        }
        self.broken(rule, &last)
    }

    pub(super) fn events(&self) -> tokio::sync::broadcast::Receiver<NodeSignal> {
        self.node.events()
    }

    /// Returns an unused key of a record.
    pub(super) fn key(&self) -> RecordKey {
        Arc::from(format!("contract:{}:{:032x}", self.case, self.env.random()))
    }

    pub(super) fn lock(&self) -> LockKeys {
        LockKeys::new(&self.key())
    }

    pub(super) fn owner(&self) -> OwnerToken {
        OwnerToken::from_random(self.env.random())
    }

    pub(super) fn owners(&self) -> (OwnerToken, OwnerToken) {
        (self.owner(), self.owner())
    }

    #[track_caller]
    pub(super) fn check(&self, holds: bool, rule: &str, got: &dyn Debug) {
        if !holds {
            self.broken(rule, got)
        }
    }

    #[track_caller]
    pub(super) fn broken(&self, rule: &str, got: &dyn Debug) -> ! {
        let name = self.node.name();
        panic!("node {name} breaks the contract in `{}`: {rule}; got {got:?}", self.case)
    }
}
