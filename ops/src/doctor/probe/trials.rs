//! Runs palisade's own script by a node of the library whose marker and note have keys of the
//! trial.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::door::{self, Door, Failure};
use palisade::FencingToken;
use palisade::error::{Cause, NodeError, NodeFault};
use palisade::internal::{MARKER, NOTE, trial_key};
use palisade::node::spi::{
    Ballot, Batch, Claim, Enlist, Env as _, Facts, IfHeld, LockKeys, LockMode, LockNode,
    NodeSignal, Op, OwnerToken, Place, Remembered, Reply, Slots, SystemEnv, Terms,
};

const META: &[u8] = b"probe";
const RESULT: &[u8] = b"result";

pub(super) type Outcome = Result<String, Failure>;

pub(super) struct Trials<'a> {
    node: Arc<dyn LockNode>,
    pub(super) door: &'a mut Door,
    trial: u64,
    within: Duration,
    /// Longer than two requests take.
    ttl: Duration,
    owners: [OwnerToken; 2],
    /// The server's clock in µs: tokens far from it are changed by the server.
    token: u64,
    /// When the batch before was sent.
    before: Instant,
    /// Why nothing more is tried.
    dead: Option<Failure>,
}

impl<'a> Trials<'a> {
    pub(super) async fn new(
        node: Arc<dyn LockNode>,
        door: &'a mut Door,
        trial: u64,
        within: Duration,
    ) -> (Self, Result<Facts, Failure>) {
        let owners = [(); 2].map(|()| OwnerToken::from_random(SystemEnv.random()));
        let (token, ttl) = (SystemEnv.wall_micros(), Duration::from_secs(2).max(2 * within));
        let before = Instant::now();
        let mut trials = Self { node, door, trial, within, ttl, owners, token, before, dead: None };
        let inspect = Op::Inspect { keys: trials.lock("lock"), wait: false };
        let mut answer = trials.send(vec![inspect.clone()]).await;
        if matches!(answer, Err(Failure::Unknown(_))) {
            // The node goes on connecting, which takes several round trips.
            answer = trials.send(vec![inspect]).await;
        }
        let facts = answer.map(|(facts, _)| facts);
        match &facts {
            Ok(facts) => trials.token = facts.node_micros,
            Err(why) => trials.dead = Some(why.clone()),
        }
        (trials, facts)
    }

    fn lock(&self, name: &str) -> LockKeys {
        LockKeys::new(&trial_key(self.trial, name))
    }

    fn acquire(&self, name: &str, mode: LockMode, who: usize, if_held: Option<IfHeld>) -> Op {
        let (keys, owner, proposal) = (self.lock(name), self.owners[who], self.token);
        Op::Acquire { mode, keys, owner, ttl: self.ttl, proposal, if_held }
    }

    fn extend(&self, name: &str, mode: LockMode, meta: Option<Arc<[u8]>>) -> Op {
        let (keys, owner, token) = (self.lock(name), self.owners[0], FencingToken::new(self.token));
        Op::Extend { mode, keys, owner, ttl: self.ttl, token, meta, reassert: None }
    }

    fn release(&self, name: &str, mode: LockMode) -> Op {
        Op::Release { mode, keys: self.lock(name), owner: self.owners[0], meta: true }
    }

    pub(super) async fn locks(&mut self) -> Outcome {
        let place = Place { waiter: 1, waited: Duration::ZERO, needs: Duration::ZERO };
        let (one, ttl) = (LockMode::Exclusive, self.ttl);
        let (owner, proposal) = (self.owners[0], self.token);
        let many = LockKeys::many(vec![self.lock("one"), self.lock("two")]);
        let (key, entry) = (trial_key(self.trial, "candidates").into(), Some(META.into()));
        let ops = vec![
            self.acquire("lock", one, 0, None),
            self.extend("lock", one, Some(META.into())),
            self.acquire("lock", one, 1, Some(IfHeld::Queue(place))),
            Op::Inspect { keys: self.lock("lock"), wait: false },
            self.release("lock", one),
            Op::Acquire { mode: one, keys: many.clone(), owner, ttl, proposal, if_held: None },
            Op::Release { mode: one, keys: many, owner, meta: false },
            Op::Enlist(Enlist { key, owner, ttl, entry, news: true }),
        ];
        self.batch(ops).await?;
        Ok("exclusive, extended, released; two names at once; a candidate enlisted".to_owned())
    }

    pub(super) async fn shared(&mut self) -> Outcome {
        let permit = LockMode::Slot(Slots::any(3));
        let ops = vec![
            self.acquire("read", LockMode::Shared, 0, None),
            self.acquire("read", LockMode::Shared, 1, None),
            self.extend("read", LockMode::Shared, None),
            self.release("read", LockMode::Shared),
            self.acquire("permit", permit, 0, None),
            self.release("permit", permit),
        ];
        self.batch(ops).await?;
        Ok("two readers beside each other, a permit".to_owned())
    }

    pub(super) async fn keys(&mut self) -> Outcome {
        let name: Arc<str> = trial_key(self.trial, "record").into();
        let (owner, fingerprint, accepted) = (self.owners[0], None, Duration::ZERO);
        let retention = 5 * self.ttl;
        let (key, lease, proposal) = (Arc::clone(&name), self.ttl, self.token);
        let (force, wait, born, created) = (false, false, None, None);
        let claim = Claim {
            key,
            owner,
            lease,
            retention,
            proposal,
            fingerprint,
            force,
            born,
            accepted,
            created,
            wait,
        };
        let (_, replies) = self.batch(vec![Op::Claim(claim)]).await?;
        let Some(Reply::Claimed { fence, .. }) = replies.first() else {
            return Err(Failure::Refused("palisade's script refused a new key".to_owned()));
        };
        let token = FencingToken::new(*fence);
        let key = Arc::clone(&name);
        let ballot = Ballot { key, owner, token, retention, fingerprint };
        let ops = vec![
            Op::Steps { ballot: ballot.clone(), list: b"step"[..].into() },
            Op::Complete { ballot, value: Some(RESULT.into()) },
            Op::Lookup { key: name, retention, fingerprint, born, accepted },
        ];
        self.batch(ops).await?;
        Ok("a key claimed, a step and a result stored and read".to_owned())
    }

    /// Whoever waits when the subscription becomes ready is woken without a hint, so the first
    /// round proves nothing.
    pub(super) async fn waking(&mut self) -> Outcome {
        let mut hints = self.node.events();
        let one = LockMode::Exclusive;
        for name in ["first", "second"] {
            let watch = self.acquire(name, one, 1, Some(IfHeld::Watch));
            self.batch(vec![self.acquire(name, one, 0, None), watch]).await?;
            self.batch(vec![self.release(name, one)]).await?;
            let keys = self.lock(name);
            let woken = async {
                let is_it = |hint| matches!(hint, NodeSignal::Changed(key) if *key == *keys.lock());
                while !is_it(hints.recv().await.map_err(|_| ())?) {}
                Ok::<(), ()>(())
            };
            if timeout(self.within, woken).await != Ok(Ok(())) {
                let within = self.within;
                return Err(Failure::Unknown(format!("a waiter was not woken within {within:?}")));
            }
        }
        Ok("a waiter was woken by a release".to_owned())
    }

    /// A server that evicted keys before grants only after a quarantine, here of `ttl`.
    async fn batch(&mut self, ops: Vec<Op>) -> Result<(Facts, Vec<Reply>), Failure> {
        let (mut facts, mut replies) = self.send(ops.clone()).await?;
        let left = replies.iter().filter_map(|reply| match reply {
            Reply::Quarantined { remaining, .. } => Some(*remaining),
            _ => None,
        });
        if let Some(left) = left.max() {
            sleep(left.min(2 * self.ttl)).await;
            (facts, replies) = self.send(ops.clone()).await?;
        }
        for (op, reply) in ops.iter().zip(&replies) {
            let Some(odd) = odd(op, reply, self.owners[0], self.ttl) else { continue };
            let why = match reply {
                Reply::Quarantined { .. } => "the server deletes keys while it is tried",
                Reply::Absent | Reply::NotOwner if self.before.elapsed() > self.ttl => {
                    "the answers came after the end of the leases"
                }
                _ => return Err(Failure::Refused(format!("palisade's script {odd}"))),
            };
            return Err(Failure::Unknown(why.to_owned()));
        }
        Ok((facts, replies))
    }

    async fn send(&mut self, ops: Vec<Op>) -> Result<(Facts, Vec<Reply>), Failure> {
        if let Some(why) = &self.dead {
            return Err(why.clone());
        }
        let terms = Terms { max_ttl: self.ttl, clock_error: Duration::from_millis(500) };
        let (not_after, remembers) = (None, Remembered::default());
        let batch = Batch { terms, not_after, remembers, ops };
        let replies = self.node.call(batch, SystemEnv.now() + self.within).await;
        // Each batch may write both without an expiry.
        for key in [MARKER, NOTE] {
            let key = trial_key(self.trial, key);
            let _ = self.door.ask(redis::cmd("PEXPIRE").arg(key).arg(door::LEFT_FOR)).await;
        }
        let items: Result<Vec<_>, _> = replies.items.into_iter().collect();
        let items = items.map_err(|e| Failure::of(&e))?;
        let facts = replies.facts.ok_or_else(|| Failure::Unknown("no facts".to_owned()))?;
        Ok((facts, items))
    }
}

/// What a node that keeps the rules does not do. `owner` is the one that holds what it asks for.
fn odd(op: &Op, reply: &Reply, owner: OwnerToken, ttl: Duration) -> Option<&'static str> {
    match (op, reply) {
        (Op::Acquire { mode: LockMode::Exclusive, owner: who, .. }, Reply::Granted { .. }) => {
            (*who != owner).then_some("granted one lock to two owners")
        }
        (Op::Acquire { mode, owner: who, .. }, Reply::Held { .. } | Reply::Queued { .. }) => {
            let is_free = *who == owner || matches!(mode, LockMode::Shared);
            is_free.then_some("refused a free lock")
        }
        (Op::Inspect { .. }, Reply::Holder(Some(shown))) => {
            let is_it = shown.owner == Some(owner) && shown.meta.as_deref() == Some(META);
            let holds = shown.remaining.is_some_and(|left| left <= ttl);
            (!is_it || !holds).then_some("shows another owner, value or lease than was stored")
        }
        (Op::Inspect { .. }, _)
        | (_, Reply::Absent | Reply::NotOwner | Reply::Quarantined { .. }) => {
            Some("forgot an owner")
        }
        (Op::Lookup { .. }, Reply::Record { state, .. }) => {
            let record = state.as_ref().and_then(|state| state.record.as_ref()?.value.as_deref());
            (record != Some(RESULT)).then_some("shows another result than was stored")
        }
        _ => None,
    }
}

impl Failure {
    fn of(e: &NodeError) -> Self {
        use NodeFault as F;
        let why = e.to_string();
        match (e.fault(), e.cause()) {
            (F::NoPermission, _) => Self::LacksRight(why),
            (F::Server, Some(Cause::Server(code))) if door::passes(code) => Self::Unknown(why),
            (F::Server | F::Unsupported | F::Protocol | F::ForeignKey, _) => Self::Refused(why),
            _ => Self::Unknown(why),
        }
    }
}

pub(super) fn keys(trial: u64) -> Vec<String> {
    let key = |name: &&str| trial_key(trial, name);
    let mut all: Vec<String> = [MARKER, NOTE, "record", "candidates"].iter().map(key).collect();
    for name in ["lock", "one", "two", "read", "permit", "first", "second"] {
        let keys = LockKeys::new(&trial_key(trial, name));
        all.extend([keys.lock(), keys.fence(), keys.queue(), keys.meta()].map(str::to_owned));
    }
    all
}

#[cfg(test)]
mod tests {
    use palisade::node::spi::{Holder, RecordState, StoredRecord};

    use super::*;

    #[test]
    fn a_node_that_breaks_the_rules_is_odd() {
        let [owner, other] = [1, 2].map(OwnerToken::from_random);
        let (ttl, keys) = (Duration::from_secs(2), LockKeys::new("k"));
        let acquire = |mode, owner| {
            let (keys, proposal, if_held) = (LockKeys::new("k"), 1, None);
            Op::Acquire { mode, keys, owner, ttl, proposal, if_held }
        };
        let held = Reply::Held { remaining: Some(ttl), foreign: false };
        let granted = Reply::Granted { fence: 1 };
        for (mode, who, reply, is_odd) in [
            (LockMode::Exclusive, owner, &granted, false),
            (LockMode::Exclusive, other, &granted, true),
            (LockMode::Exclusive, owner, &held, true),
            (LockMode::Exclusive, other, &held, false),
            (LockMode::Shared, other, &granted, false),
            (LockMode::Shared, other, &held, true),
        ] {
            let odd = odd(&acquire(mode, who), reply, owner, ttl);
            assert_eq!(odd.is_some(), is_odd, "{mode:?} {reply:?} {odd:?}");
        }
        let inspect = Op::Inspect { keys, wait: false };
        let good =
            Holder { owner: Some(owner), fence: 1, remaining: Some(ttl), meta: Some(META.into()) };
        for (holder, is_odd) in [
            (Some(good.clone()), false),
            (Some(Holder { owner: Some(other), ..good.clone() }), true),
            (Some(Holder { remaining: Some(2 * ttl), ..good.clone() }), true),
            (Some(Holder { remaining: None, ..good.clone() }), true),
            (Some(Holder { meta: None, ..good }), true),
            (None, true),
        ] {
            let reply = Reply::Holder(holder);
            assert_eq!(odd(&inspect, &reply, owner, ttl).is_some(), is_odd, "{reply:?}");
        }
        let (fingerprint, accepted) = (None, Duration::ZERO);
        let lookup =
            Op::Lookup { key: "k".into(), retention: ttl, fingerprint, born: None, accepted };
        for (value, is_odd) in [(RESULT, false), (META, true)] {
            let record = StoredRecord { token: FencingToken::new(1), value: Some(value.into()) };
            let state = RecordState { fence: 1, attempt: 1, lease: None, record: Some(record) };
            let (unsure, losses) = (Duration::ZERO, Vec::new());
            let reply = Reply::Record { state: Some(state), unsure, losses };
            assert_eq!(odd(&lookup, &reply, owner, ttl).is_some(), is_odd);
        }
    }

    #[test]
    fn only_what_another_time_would_meet_too_is_a_refusal() {
        let of = |fault, code: &str| {
            let e = NodeError::not_executed(fault, code);
            match Failure::of(&e) {
                Failure::Refused(_) => "refused",
                Failure::LacksRight(_) => "right",
                Failure::Unknown(_) => "unknown",
            }
        };
        for (fault, wanted) in [
            (NodeFault::NoReplicas, "unknown"),
            (NodeFault::NotMaster, "unknown"),
            (NodeFault::PastDeadline, "unknown"),
            (NodeFault::ClockJump, "unknown"),
            (NodeFault::NoPermission, "right"),
            (NodeFault::Unsupported, "refused"),
        ] {
            assert_eq!(of(fault, "words"), wanted, "{fault:?}");
        }
    }
}
