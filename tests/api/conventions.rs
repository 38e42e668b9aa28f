//! Conventions of Rust libraries: the traits of public types, shorthand constructors, and the
//! advice of errors (the next step that an error proposes to its caller).

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use futures_util::StreamExt as _;
use palisade::election::{CampaignError, Observer, StateWatch};
use palisade::error::{Advice, Advise, ConfigError, NodeError, NodeFault};
use palisade::idempotency::{Call, Context};
use palisade::node::{MemoryNode, NodeEvent, NodeEvents, RedisNode, SentinelNode};
use palisade::{
    AcquireError, Election, ElectionBuilder, FencingToken, Idempotency, Leadership, LockGuard,
    LostSignal, Mutex, MutexBuilder, Redlock, RedlockBuilder, ReleaseError, RunError, WorkError,
};
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(10);

fn redlock() -> Redlock {
    Redlock::builder().node(MemoryNode::new()).ttl(TTL).build().unwrap()
}

#[test]
fn handles_can_be_shared_moved_and_printed() {
    fn shared<T: Send + Sync + Unpin + Debug + 'static>() {}
    fn cloned<T: Clone>() {}
    fn sent<T: Send + 'static>() {}
    shared::<(Redlock, RedlockBuilder)>();
    shared::<(Mutex, MutexBuilder, LockGuard, LostSignal)>();
    shared::<(Election, ElectionBuilder, Leadership, StateWatch, NodeEvents)>();
    shared::<(Idempotency, Call, Context)>();
    shared::<(MemoryNode, RedisNode, SentinelNode)>();
    shared::<(AcquireError, RunError, WorkError<u32>)>();
    cloned::<(Redlock, RedlockBuilder, Mutex, MutexBuilder, Election, ElectionBuilder)>();
    cloned::<(Idempotency, Call, Context, LostSignal)>();
    sent::<Observer>();
}

#[test]
fn every_error_advises_through_one_trait() {
    fn advises<E: Advise + Error>() {}
    advises::<AcquireError>();
    advises::<ReleaseError>();
    advises::<CampaignError>();
    advises::<RunError>();
    advises::<ConfigError>();
    advises::<WorkError<u32, CampaignError>>();
    let busy = NodeError::not_executed(NodeFault::Busy, "");
    let error: &dyn Advise = &busy;
    assert_eq!(error.advice(), Advice::RetryAfter(Duration::from_millis(500)));
}

#[tokio::test]
async fn a_builder_that_is_awaited_acquires_or_says_what_is_wrong_with_it() {
    let redlock = redlock();
    let guard = redlock.mutex("a").await.unwrap();
    assert!(guard.is_valid());
    let taken = redlock.mutex("a").acquire_timeout(Duration::ZERO).await;
    assert!(matches!(taken, Err(AcquireError::TimedOut { .. })), "{taken:?}");
    let wrong = redlock.mutex("").await.unwrap_err();
    assert!(matches!(wrong, AcquireError::Config(_)), "{wrong:?}");
    assert_eq!(wrong.advice(), Advice::Misconfigured);
    let leadership = redlock.election("a").await.unwrap();
    assert_eq!(&*leadership.value(), "");
    let wrong = redlock.election("b").ttl(Duration::ZERO).await.unwrap_err();
    assert_eq!(wrong.advice(), Advice::Misconfigured);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_an_instant_that_timers_take() {
    let guard = redlock().mutex("a").auto_renew(false).await.unwrap();
    let (now, deadline) = (Instant::now(), guard.deadline());
    assert!(deadline > now && deadline <= now + TTL, "{deadline:?}");
    assert!(FencingToken::from(u64::from(guard.fencing_token())) == guard.fencing_token());
    drop(guard);
}

#[tokio::test]
async fn events_are_a_stream() {
    let node = MemoryNode::builder().name("n").build();
    let redlock = Redlock::builder().node(node.clone()).ttl(TTL).build().unwrap();
    let events = redlock.events();
    let guard = redlock.mutex("a").await.unwrap();
    node.restart_empty();
    let restarted = events.filter(|named| {
        let changed = matches!(named.event, NodeEvent::HistoryChanged { .. });
        std::future::ready(changed)
    });
    let named = std::pin::pin!(restarted).next().await.unwrap();
    assert_eq!(&*named.node, "n");
    drop(guard);
}
