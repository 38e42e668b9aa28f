//! Tests of a node in memory, with a clock that they set: use of memory, quarantine and floor
//! (smallest fencing token) after a loss of data, lifetime of a fence (last fencing token).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::MemoryNode;
use super::RecordChange;
use crate::env::Env;
use crate::error::NodeFault;
use crate::name::LockKeys;
use crate::node::LockNode as _;
use crate::op::{
    Batch, Began, Claim, Facts, LockMode, Loss, Op, QuarantineId, Remembered, Reply, Terms,
};
use crate::token::{FencingToken, OwnerToken};

const E: Duration = Duration::from_secs(60);
const MAX_TTL: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(10);
const TERMS: Terms = Terms { max_ttl: MAX_TTL, clock_error: E };
const EPOCH: u64 = 1_700_000_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Hand(AtomicU64);

impl Env for Hand {
    fn now(&self) -> crate::time::Moment {
        crate::time::Moment::from_nanos(self.0.load(Ordering::Relaxed))
    }
    fn wall_micros(&self) -> u64 {
        EPOCH + self.0.load(Ordering::Relaxed) / 1_000
    }
    fn random(&self) -> u128 {
        7
    }
}

impl Hand {
    pub(super) fn pass(&self, d: Duration) {
        self.0.fetch_add(d.as_nanos() as u64, Ordering::Relaxed);
    }
    pub(super) fn step_back(&self, d: Duration) {
        self.0.fetch_sub(d.as_nanos() as u64, Ordering::Relaxed);
    }
}

pub(super) fn node() -> (MemoryNode, Arc<Hand>) {
    let hand = Arc::new(Hand::default());
    (MemoryNode::builder().env(hand.clone()).build(), hand)
}

pub(super) fn ask(node: &MemoryNode, op: Op) -> Reply {
    let mut replies = node.execute(&Batch {
        terms: TERMS,
        not_after: None,
        remembers: Remembered::default(),
        ops: vec![op],
    });
    replies.items.remove(0).unwrap()
}

fn facts(node: &MemoryNode, terms: Terms) -> Facts {
    node.execute(&Batch { terms, not_after: None, remembers: Remembered::default(), ops: vec![] })
        .facts
        .unwrap()
}

pub(super) fn owner(n: u128) -> OwnerToken {
    OwnerToken::from_random(n)
}

pub(super) fn acquire(name: &str, by: u128, proposal: u64) -> Op {
    let (mode, keys, owner) = (LockMode::Exclusive, LockKeys::new(name), owner(by));
    Op::Acquire { mode, keys, owner, ttl: TTL, proposal, if_held: None }
}

fn claim(key: &str, by: u128, retention: Duration) -> Op {
    Op::Claim(Claim {
        key: key.into(),
        owner: owner(by),
        lease: TTL,
        retention,
        proposal: 0,
        fingerprint: None,
        force: false,
        born: None,
        accepted: Duration::ZERO,
        created: None,
        wait: false,
    })
}

fn fence(reply: &Reply) -> u64 {
    match reply {
        Reply::Granted { fence } | Reply::Claimed { fence, .. } => *fence,
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn a_million_names_do_not_pile_up() {
    let (node, hand) = node();
    let mut most = 0;
    for n in 0..1_000_000_u64 {
        let name = format!("job:{n}");
        fence(&ask(&node, acquire(&name, 1, 0)));
        let (mode, keys) = (LockMode::Exclusive, LockKeys::new(&name));
        ask(&node, Op::Release { mode, keys, owner: owner(1), meta: true });
        hand.pass(Duration::from_millis(50));
        most = most.max(node.len());
    }
    // A fence (last fencing token of a name) is kept for 271 s, in which this test uses 5 420
    // names. Expired names are removed when the map has doubled, so at most twice as many names are
    // in memory.
    assert!(most <= 12_000, "{most} names in memory");
}

#[test]
fn a_new_node_grants_at_once_and_a_restarted_one_after_the_quarantine() {
    let (node, hand) = node();
    let before = fence(&ask(&node, acquire("a", 1, EPOCH + 5)));
    assert_eq!(before, EPOCH + 5);
    assert!(!facts(&node, TERMS).new_history);
    let old = facts(&node, TERMS);

    node.restart_empty();
    let new = facts(&node, TERMS);
    assert!(new.new_history && new.history_id != old.history_id);
    assert_ne!(new.identity, old.identity);
    assert_eq!((new.quarantine, new.quarantine_len), (MAX_TTL, MAX_TTL));
    assert_eq!(rest(&ask(&node, acquire("a", 1, 0))), MAX_TTL);
    assert_eq!(rest(&ask(&node, claim("r", 1, E))), MAX_TTL);

    let last = Duration::from_millis(1);
    hand.pass(MAX_TTL.saturating_sub(last));
    assert!(matches!(ask(&node, acquire("a", 1, 0)), Reply::Quarantined { .. }));
    hand.pass(last);
    // The floor (smallest token after the restart) is the wall clock at the restart + 2E (twice the
    // clock error) + the length of the quarantine, which is above every fence that was granted
    // before.
    assert_eq!(fence(&ask(&node, acquire("a", 2, 0))), EPOCH + 120_000_000 + 30_000_000);
    assert_eq!(facts(&node, TERMS).quarantine, Duration::ZERO);
}

#[test]
fn a_closed_node_says_for_how_long() {
    let (node, hand) = node();
    fence(&ask(&node, acquire("a", 1, 0)));
    assert!(node.close(Duration::from_secs(5)));
    hand.pass(Duration::from_secs(2));
    let ops = vec![acquire("a", 2, 0)];
    let batch = Batch { terms: TERMS, not_after: None, remembers: Remembered::default(), ops };
    let refused = node.execute(&batch).items.remove(0).unwrap_err();
    assert_eq!(refused.fault(), NodeFault::HandingOver);
    assert!(refused.detail().contains("another 3s"), "{refused}");
}

#[test]
fn the_longest_quarantine_asked_for_wins() {
    let hand = Arc::new(Hand::default());
    let window = Duration::from_secs(12);
    let node = MemoryNode::builder().env(hand.clone()).failover_window(window).unwrap();
    let node = node.quarantined().build();
    assert_eq!(facts(&node, TERMS).quarantine, Duration::from_secs(42));
    let longer = Terms { max_ttl: 2 * MAX_TTL, ..TERMS };
    assert_eq!(facts(&node, longer).quarantine_len, Duration::from_secs(72));
    hand.pass(Duration::from_secs(60));
    assert_eq!(rest(&ask(&node, acquire("a", 1, 0))), Duration::from_secs(12));
}

#[test]
fn no_window_is_too_long_to_reckon_with() {
    let node = MemoryNode::builder().env(Arc::new(Hand::default())).quarantined().build();
    node.set_failover_windows(Duration::MAX, Duration::MAX);
    let (got, most) = (facts(&node, TERMS), Duration::from_millis(u64::MAX));
    assert_eq!((got.quarantine_len, got.quarantine_asked), (most, Duration::MAX));
}

/// Checks that a quarantine (time without grants after a loss) is long enough for servers whose
/// settings the client has not read.
#[test]
fn a_history_begins_with_what_may_be_unknown_of_the_group() {
    let (known, longest) = (Duration::from_secs(4), Duration::from_secs(12));
    let (a, hand) = node();
    let b = MemoryNode::builder().env(hand).quarantined().build();
    a.set_failover_windows(known, known);
    assert_eq!(facts(&a, TERMS).quarantine_len, MAX_TTL + known);
    // The marker (the record of the data history) in the restored snapshot is older than the
    // settings of the server that was replaced. This client has not read those settings. So the
    // longest possible failover window counts.
    b.restore(a.snapshot());
    b.set_failover_windows(known, longest);
    assert_eq!(facts(&b, TERMS).quarantine, MAX_TTL + longest);
}

#[test]
fn a_loss_keeps_the_window_with_which_it_began() {
    let (known, longest) = (Duration::from_secs(4), Duration::from_secs(12));
    let (a, hand) = node();
    facts(&a, TERMS);
    let b = MemoryNode::builder().env(hand).quarantined().build();
    b.restore(a.snapshot());
    b.set_failover_windows(known, longest);
    let first = facts(&b, TERMS);
    let ends = first.node_micros / 1_000 + 12_000;
    assert_eq!(first.losses.last().map(|loss| loss.to), Some(ends));
    // In a quarantine (a time without grants) the longest failover window (L) that a client asks
    // for counts.
    let longer = longest + Duration::from_secs(1);
    b.set_failover_windows(known, longer);
    let first = facts(&b, TERMS);
    let ends = ends + 1_000;
    assert_eq!(first.losses.last().map(|loss| loss.to), Some(ends));
    // The settings of the group were lowered; the recorded loss of data does not change.
    b.set_failover_windows(Duration::ZERO, Duration::ZERO);
    assert_eq!(facts(&b, TERMS).losses, first.losses);
    // The beginning of the loss of data, which is its name for operators, does not change either.
    assert_eq!(first.losses[0].began, first.node_micros / 1_000);
    // With more than eight losses of data, two are merged. The merged loss contains both, even if
    // the second one ends earlier.
    for _ in 0..8 {
        b.restore(b.snapshot());
        facts(&b, TERMS);
    }
    let merged = facts(&b, TERMS).losses;
    assert_eq!((merged.len(), merged[0].to), (8, ends));
}

#[test]
fn the_first_data_began_when_they_did_whatever_l_is_later() {
    let (_, hand) = node();
    let node = MemoryNode::builder().env(hand.clone()).quarantined().build();
    let long = Duration::from_secs(12);
    node.set_failover_windows(long, long);
    let first = facts(&node, TERMS).node_micros;
    for window in [0, 3, 20].map(Duration::from_secs) {
        node.restore(node.snapshot());
        node.set_failover_windows(window, window);
        assert_eq!(knowing(&node, first), Began::Empty, "{window:?}");
    }
    assert_eq!(knowing(&node, first - 1_000), Began::Lost);
}

/// Returns the state of the node's data at their beginning (new, empty or lost), for a client that
/// first saw data on the node at this time (µs).
fn knowing(node: &MemoryNode, micros: u64) -> Began {
    let known_since = Some(micros);
    let remembers = Remembered { known_since, ..Remembered::default() };
    let batch = Batch { terms: TERMS, not_after: None, remembers, ops: Vec::new() };
    node.execute(&batch).facts.unwrap().began
}

#[test]
fn of_nine_losses_those_become_one_that_are_the_shortest_for_their_age() {
    let (node, hand) = node();
    let hours = |n: u64| Duration::from_secs(n * 3_600);
    let lose = || {
        node.restore(node.snapshot());
        facts(&node, TERMS).losses
    };
    facts(&node, TERMS);
    let all: Vec<_> = (0..8)
        .map(|_| {
            hand.pass(hours(1));
            facts(&node, TERMS);
            lose().last().copied().unwrap()
        })
        .collect();
    hand.pass(hours(1));
    let nine = lose();
    let both = Loss { from: all[0].from, ..all[1] };
    assert_eq!(nine[..7], [&[both], &all[2..]].concat());
    // Minutes later two other losses of data are merged: neither the recent ones, about which an
    // operator decides, nor the loss that was merged before.
    hand.pass(Duration::from_secs(600));
    let ten = lose();
    let both = Loss { from: all[2].from, ..all[3] };
    assert_eq!((ten.len(), ten[0], ten[1], ten[6]), (8, nine[0], both, nine[7]));
}

#[test]
fn a_loss_of_everything_is_merged_with_no_other() {
    let (_, hand) = node();
    let b = MemoryNode::builder().env(hand).quarantined().build();
    let first = facts(&b, TERMS).losses[0];
    for round in 1..12 {
        b.restore(b.snapshot());
        let losses = facts(&b, TERMS).losses;
        assert_eq!((losses[0], losses.len()), (first, 8.min(round + 1)));
    }
}

fn rest(reply: &Reply) -> Duration {
    match reply {
        Reply::Quarantined { remaining, .. } => *remaining,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_loss_of_data_or_continuity_opens_a_quarantine() {
    for how in ["restart", "keep", "flush", "restore"] {
        let (node, hand) = node();
        fence(&ask(&node, acquire("a", 1, 0)));
        let held = node.snapshot();
        match how {
            "restart" => node.restart_empty(),
            "keep" => node.restart_keeping(),
            "flush" => node.flush_all(),
            _ => node.restore(held),
        }
        assert!(matches!(ask(&node, acquire("a", 1, 0)), Reply::Quarantined { .. }), "{how}");
        // The present holder may extend its lease if it names the quarantine (the time without new
        // grants). Then it still has the lock when the quarantine ends.
        let extend = |reassert| Op::Extend {
            mode: LockMode::Exclusive,
            keys: LockKeys::new("a"),
            owner: owner(1),
            ttl: MAX_TTL + TTL,
            token: FencingToken::new(EPOCH),
            meta: None,
            reassert,
        };
        let Reply::Quarantined { id, .. } = ask(&node, extend(None)) else {
            panic!("{how}: extended in quarantine by who does not name it")
        };
        let wrong = QuarantineId { since: id.since + 1, ..id };
        let wrong = ask(&node, extend(Some(wrong)));
        assert!(matches!(wrong, Reply::Quarantined { .. }), "{how}: {wrong:?}");
        assert_eq!(ask(&node, extend(Some(id))), Reply::Done, "{how}");
        hand.pass(MAX_TTL);
        assert!(matches!(ask(&node, acquire("a", 2, 0)), Reply::Held { .. }), "{how}");
    }
}

#[test]
fn proposals_are_clamped_to_the_clock_error() {
    let (node, _) = node();
    let e = E.as_micros() as u64;
    assert_eq!(fence(&ask(&node, acquire("far", 1, u64::MAX))), EPOCH + e);
    assert_eq!(fence(&ask(&node, acquire("past", 1, 1))), EPOCH - e);
}

#[test]
fn a_fence_outlives_its_lock_and_expires_later() {
    let (node, hand) = node();
    assert!(node.is_empty());
    let high = fence(&ask(&node, acquire("a", 1, u64::MAX)));
    hand.pass(TTL);
    assert_eq!(fence(&ask(&node, acquire("a", 2, 0))), high + 1);
    assert_eq!((node.len(), node.is_empty()), (1, false));
    // The node has forgotten the fence (last fencing token) after max_ttl + 4E + 1 s, where E is
    // the clock error. Then even a client with the slowest clock proposes a larger fence.
    hand.pass(MAX_TTL + 4 * E + Duration::from_secs(1));
    assert!(fence(&ask(&node, acquire("a", 3, 0))) > high + 1);
}

#[test]
fn a_jump_of_the_clock_expires_leases_early() {
    let (node, _) = node();
    let ops = [acquire("a", 1, 0), claim("key", 1, MAX_TTL)];
    let [first, seen] = ops.map(|op| fence(&ask(&node, op)));
    let wall = facts(&node, TERMS).node_micros;
    let rerun = || node.change_record("key", seen, RecordChange::Rerun);
    node.jump_clock(TTL.saturating_sub(Duration::from_nanos(1)));
    assert!(!rerun(), "its handler may still run");
    node.jump_clock(Duration::from_nanos(1));
    assert!(rerun());
    assert_eq!(facts(&node, TERMS).node_micros - wall, 10_000_000);
    assert!(fence(&ask(&node, acquire("a", 2, 0))) > first);
}

/// Checks that the node stores its clock again after the clock was set back. So a loss of data
/// begins at the new time, and covers no write that came after it.
#[test]
fn a_clock_that_was_set_back_is_noted() {
    let (node, hand) = node();
    hand.pass(100 * TTL);
    facts(&node, TERMS);
    hand.0.fetch_sub((50 * TTL).as_nanos() as u64, Ordering::Relaxed);
    let set_back = facts(&node, TERMS).node_micros / 1_000;
    node.restart_keeping();
    assert_eq!(facts(&node, TERMS).losses.last().map(|loss| loss.from), Some(set_back));
}

#[test]
fn what_a_node_forgot_it_does_not_claim_to_know() {
    let (node, hand) = node();
    let retention = Duration::from_secs(3_600);
    let remembers = |reply: Reply| match reply {
        Reply::Claimed { unsure, .. } => unsure.is_zero(),
        other => panic!("{other:?}"),
    };
    assert!(remembers(ask(&node, claim("new", 1, retention))));
    node.restart_empty();
    facts(&node, TERMS);
    hand.pass(MAX_TTL);
    assert!(!remembers(ask(&node, claim("after", 1, retention))));
    assert!(!remembers(ask(&node, claim("after", 1, retention))), "a repeat hears the same");
    hand.pass(retention + 2 * E);
    assert!(remembers(ask(&node, claim("later", 1, retention))));
}

/// Checks that after a planned handover, names and claims that were in use are kept for exactly as
/// long as two clocks may differ.
#[test]
fn after_a_handover_what_was_in_use_is_kept_for_twice_the_clock_error() {
    const TERMS: Terms = Terms { max_ttl: MAX_TTL, clock_error: Duration::from_secs(5) };
    const APART: Duration = Duration::from_secs(10);
    const NANO: Duration = Duration::from_millis(1);
    let ask = |node: &MemoryNode, op: Op| {
        let mut replies = node.execute(&Batch {
            terms: TERMS,
            not_after: None,
            remembers: Remembered::default(),
            ops: vec![op],
        });
        replies.items.remove(0).unwrap()
    };
    let (node, hand) = node();
    for op in [acquire("lock", 1, 0), claim("key", 1, MAX_TTL), claim("earlier", 1, MAX_TTL)] {
        ask(&node, op);
    }
    let end = crate::op::ClaimEnd::Lapsed;
    ask(&node, Op::Unclaim { key: "earlier".into(), owner: owner(1), end });
    let left = fence(&ask(&node, claim("left", 1, MAX_TTL)));
    let rerun = |node: &MemoryNode| node.change_record("left", left, RecordChange::Rerun);
    hand.pass(TTL.saturating_sub(NANO));
    assert!(node.close(TTL));
    node.hand_over();
    assert!(!node.close(TTL), "it would forget that it settles");
    hand.pass(NANO);
    let ops = [acquire("lock", 2, 0), claim("key", 2, MAX_TTL)];
    let inspect = Op::Inspect { keys: LockKeys::new("lock"), wait: false };
    let Reply::Holder(Some(kept)) = ask(&node, inspect.clone()) else {
        panic!("shown as free before anyone asked for it")
    };
    assert_eq!((kept.owner, kept.remaining), (Some(OwnerToken::KEPT), Some(APART)));
    for (left, past) in [(APART, APART.saturating_sub(NANO)), (NANO, NANO)] {
        let replies: Vec<Reply> = ops.iter().map(|op| ask(&node, op.clone())).collect();
        let held = Reply::Held { remaining: Some(left), foreign: false };
        assert_eq!(replies, [held, Reply::InFlight { remaining: left }]);
        let Reply::Holder(Some(kept)) = ask(&node, inspect.clone()) else { panic!("not shown") };
        assert_eq!((kept.owner, kept.remaining), (Some(OwnerToken::KEPT), Some(left)));
        hand.pass(past);
    }
    assert_eq!(ask(&node, inspect), Reply::Holder(None), "shown although it is free");
    fence(&ask(&node, ops[0].clone()));
    assert!(matches!(ask(&node, ops[1].clone()), Reply::Claimed { attempt: 2, .. }));
    let ended = ask(&node, claim("earlier", 2, MAX_TTL));
    assert!(matches!(ended, Reply::Claimed { attempt: 2, .. }), "its holder had ended it");
    hand.pass(MAX_TTL.saturating_sub(APART + 2 * NANO));
    assert!(!node.close(TTL), "still settling");
    assert!(!rerun(&node), "its handler may still run");
    hand.pass(NANO);
    assert!(rerun(&node));
    fence(&ask(&node, acquire("another", 1, 0)));
    assert!(node.close(TTL));
}

/// Checks the conditions for finishing a planned handover to another server. The promoted server
/// has the data of the closed server (which refuses requests) in a new data history.
#[test]
fn a_handover_is_finished_by_the_data_that_hold_its_closing_while_enough_of_it_is_left() {
    const APART: Duration = Duration::from_secs(2);
    let (closed, hand) = node();
    fence(&ask(&closed, acquire("lock", 1, 0)));
    assert!(closed.close(TTL));
    let closing = closed.closing().expect("closed");
    let promoted = || {
        let node = MemoryNode::builder().env(hand.clone()).build();
        fence(&ask(&node, acquire("older", 1, 0)));
        node.restore(closed.snapshot());
        node
    };
    assert!(!closed.finish_handover(closing, APART), "in the history that was closed");
    let (node, other, late) = (promoted(), promoted(), promoted());
    assert!(!other.finish_handover(closing + 1, APART), "another closing");
    hand.pass(TTL.saturating_sub(APART));
    assert!(node.finish_handover(closing, APART));
    assert!(facts(&node, TERMS).quarantine.is_zero(), "complete data need no quarantine");
    assert!(!node.finish_handover(closing, APART), "finished already");
    hand.pass(Duration::from_millis(1));
    assert!(!late.finish_handover(closing, APART), "too little is left");
    late.open(closing);
    assert_eq!(facts(&late, TERMS).quarantine, MAX_TTL);
}

#[test]
fn names_are_unique_and_shown_and_clones_are_the_same_node() {
    let (a, b) = (MemoryNode::new(), MemoryNode::new());
    assert_ne!(a.name(), b.name());
    fence(&ask(&a.clone(), acquire("x", 1, 0)));
    assert!(matches!(ask(&a, acquire("x", 2, 0)), Reply::Held { .. }));
    let shown = format!("{:?}", MemoryNode::builder().name("orders-a").build());
    assert!(shown.contains("orders-a"), "{shown}");
}
