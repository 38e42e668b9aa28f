//! Tests of each fault, from the side of the caller and of the node. Tokio's clock is paused.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use palisade::error::{NodeError, NodeFault};
use palisade::node::spi::{
    Batch, Env, LockKeys, LockMode, LockNode, Op, OwnerToken, Remembered, Reply, Terms,
};
use palisade::{MemoryNode, Moment};
use palisade_testing::fault::{Fault, FaultControl, Odds, Step};

const BUDGET: Duration = Duration::from_millis(100);
const MS: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Paused(Instant);

impl Env for Paused {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
    fn wall_micros(&self) -> u64 {
        1_700_000_000_000_000 + self.0.elapsed().as_micros() as u64
    }
    fn random(&self) -> u128 {
        3
    }
}

struct Scene {
    env: Arc<dyn Env>,
    memory: MemoryNode,
    node: Fault,
    control: FaultControl,
}

fn scene() -> Scene {
    let env: Arc<dyn Env> = Arc::new(Paused(Instant::now()));
    let memory = MemoryNode::builder().env(env.clone()).build();
    let lossy = memory.clone();
    let node = Fault::new(memory.clone()).env(env.clone()).forget_by(move || lossy.restart_empty());
    let control = node.control();
    Scene { env, memory, node, control }
}

fn batch(ops: Vec<Op>) -> Batch {
    let terms = Terms { max_ttl: Duration::from_secs(30), clock_error: Duration::from_secs(60) };
    Batch { terms, not_after: None, remembers: Remembered::default(), ops }
}

fn acquire(by: u128) -> Op {
    let ttl = Duration::from_secs(10);
    let (keys, owner) = (LockKeys::new("a"), OwnerToken::from_random(by));
    Op::Acquire { mode: LockMode::Exclusive, keys, owner, ttl, proposal: 0, if_held: None }
}

fn release(by: u128) -> Op {
    Op::Release {
        mode: LockMode::Exclusive,
        keys: LockKeys::new("a"),
        owner: OwnerToken::from_random(by),
        meta: true,
    }
}

impl Scene {
    async fn ask(&self, op: Op) -> Result<Reply, NodeError> {
        let deadline = self.env.now() + BUDGET;
        self.node.call(batch(vec![op]), deadline).await.items.remove(0)
    }

    async fn times_out(&self, op: Op) {
        let start = self.env.now();
        let error = self.ask(op).await.unwrap_err();
        assert_eq!((error.fault(), error.is_ambiguous()), (NodeFault::Timeout, true));
        // Tokio's timers have a resolution of one millisecond.
        assert!((BUDGET..=BUDGET + MS).contains(&self.env.now().since(start)));
    }

    async fn holder(&self) -> Option<OwnerToken> {
        let op = Op::Inspect { keys: LockKeys::new("a"), wait: false };
        let replies = self.memory.call(batch(vec![op]), self.env.now()).await;
        match &replies.items[0] {
            Ok(Reply::Holder(holder)) => holder.as_ref().and_then(|h| h.owner),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_never_runs_and_a_lost_reply_did() {
    let s = scene();
    s.control.script([Step::lose_request(), Step::lose_reply(), Step::fine()]);
    s.times_out(acquire(1)).await;
    sleep(10 * BUDGET).await;
    assert_eq!(s.holder().await, None);
    s.times_out(acquire(2)).await;
    assert_eq!(s.holder().await, Some(OwnerToken::from_random(2)));
    assert!(matches!(s.ask(acquire(3)).await, Ok(Reply::Held { .. })));
    assert_eq!(s.control.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn delays_before_and_behind_the_node() {
    let s = scene();
    s.control.script([Step::delay(20 * MS), Step::delay_reply(150 * MS), Step::delay(150 * MS)]);
    let start = s.env.now();
    assert!(matches!(s.ask(acquire(1)).await, Ok(Reply::Granted { .. })));
    assert!(s.env.now().since(start) >= 20 * MS);
    s.times_out(release(1)).await;
    assert_eq!(s.holder().await, None);
    // The request is late but not cancelled.
    s.times_out(acquire(2)).await;
    assert_eq!(s.holder().await, None);
    sleep(100 * MS).await;
    assert_eq!(s.holder().await, Some(OwnerToken::from_random(2)));
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_arrives_later() {
    let s = scene();
    s.control.script([Step::duplicate(50 * MS)]);
    assert!(matches!(s.ask(acquire(1)).await, Ok(Reply::Granted { .. })));
    assert_eq!(s.ask(release(1)).await, Ok(Reply::Done));
    assert_eq!(s.holder().await, None);
    sleep(60 * MS).await;
    assert_eq!(s.holder().await, Some(OwnerToken::from_random(1)));
}

#[tokio::test(start_paused = true)]
async fn a_frozen_node_runs_its_queue_in_order_when_it_thaws() {
    let s = scene();
    s.control.freeze();
    s.times_out(acquire(1)).await;
    s.times_out(release(1)).await;
    s.times_out(acquire(2)).await;
    assert_eq!(s.holder().await, None);
    s.control.thaw();
    // It arrives while the node executes its queued requests.
    assert!(matches!(s.ask(acquire(3)).await, Ok(Reply::Held { .. })));
    assert_eq!(s.holder().await, Some(OwnerToken::from_random(2)));
    assert_eq!(s.ask(release(2)).await, Ok(Reply::Done));
}

#[tokio::test(start_paused = true)]
async fn a_cut_is_reported_at_once_and_heals() {
    let s = scene();
    s.control.cut();
    let error = s.ask(acquire(1)).await.unwrap_err();
    assert_eq!((error.fault(), error.is_ambiguous()), (NodeFault::Unreachable, false));
    s.control.heal();
    assert!(matches!(s.ask(acquire(2)).await, Ok(Reply::Granted { .. })));
}

#[tokio::test(start_paused = true)]
async fn forgetting_restarts_the_node() {
    let s = scene();
    assert!(matches!(s.ask(acquire(1)).await, Ok(Reply::Granted { .. })));
    s.control.script([Step::forget()]);
    assert!(matches!(s.ask(acquire(1)).await, Ok(Reply::Quarantined { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_caller_does_not_stop_the_request() {
    let s = scene();
    s.control.script([Step::delay(20 * MS)]);
    drop(tokio::time::timeout(MS, s.ask(acquire(1))).await);
    sleep(30 * MS).await;
    assert_eq!(s.holder().await, Some(OwnerToken::from_random(1)));
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_history() {
    async fn history(seed: u64) -> Vec<String> {
        let s = scene();
        let odds = Odds {
            lose_request: 0.2,
            lose_reply: 0.2,
            duplicate: 0.3,
            delay: 0.5,
            forget: 0.02,
            max_delay: 2 * BUDGET,
        };
        s.control.dice(seed, odds);
        let mut lines = Vec::new();
        for n in 0..60 {
            let reply = s.ask(if n % 2 == 0 { acquire(n / 2) } else { release(n / 2) }).await;
            lines.push(format!("{:?} {reply:?}", s.env.now()));
        }
        s.control.clear();
        lines
    }
    let first = history(1).await;
    assert_eq!(first, history(1).await);
    assert_ne!(first, history(2).await);
    let lost = first.iter().filter(|line| line.contains("Timeout")).count();
    assert!((5..55).contains(&lost), "{lost} of 60 lost");
}
