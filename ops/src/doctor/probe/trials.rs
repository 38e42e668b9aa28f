//! Runs palisade's own script by a node of the library whose marker and note have keys of the
//! trial.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use palisade::FencingToken;
use palisade::error::{NodeError, NodeFault};
use palisade::internal::{MARKER, NOTE, trial_key};
use palisade::node::spi::{
    Ballot, Batch, Claim, Enlist, Env as _, Facts, IfHeld, LockKeys, LockMode, LockNode,
    NodeSignal, Op, OwnerToken, Place, Remembered, Reply, Slots, SystemEnv, Terms,
};

const TTL: Duration = Duration::from_secs(2);
const KEPT: Duration = Duration::from_secs(10);
const TERMS: Terms = Terms { max_ttl: TTL, clock_error: Duration::from_millis(500) };

/// What another time or another way may not meet.
const PASSING: [NodeFault; 11] = [
    NodeFault::Unreachable,
    NodeFault::Timeout,
    NodeFault::Disconnected,
    NodeFault::Loading,
    NodeFault::Busy,
    NodeFault::Contended,
    NodeFault::NoSentinel,
    NodeFault::UnknownMaster,
    NodeFault::NoAgreement,
    NodeFault::HandingOver,
    NodeFault::Closed,
];

/// Why a trial did not succeed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    LacksRight(String),
    Refused(String),
    Unknown(String),
}

pub(super) type Outcome = Result<String, Failure>;

pub(super) struct Trials {
    node: Arc<dyn LockNode>,
    trial: u64,
    within: Duration,
    owners: [OwnerToken; 2],
    /// The server's clock in µs: tokens far from it are changed by the server.
    token: u64,
    /// Why nothing more is tried.
    dead: Option<Failure>,
}

impl Trials {
    pub(super) async fn new(
        node: Arc<dyn LockNode>,
        trial: u64,
        within: Duration,
    ) -> (Self, Result<Facts, Failure>) {
        let owners = [(); 2].map(|()| OwnerToken::from_random(SystemEnv.random()));
        let token = SystemEnv.wall_micros();
        let mut trials = Self { node, trial, within, owners, token, dead: None };
        let inspect = Op::Inspect { keys: trials.lock("lock"), wait: false };
        let facts = trials.batch(vec![inspect]).await.map(|(facts, _)| facts);
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
        Op::Acquire { mode, keys, owner, ttl: TTL, proposal, if_held }
    }

    fn extend(&self, name: &str, mode: LockMode, meta: Option<Arc<[u8]>>) -> Op {
        let (keys, owner, token) = (self.lock(name), self.owners[0], FencingToken::new(self.token));
        Op::Extend { mode, keys, owner, ttl: TTL, token, meta, reassert: None }
    }

    fn release(&self, name: &str, mode: LockMode) -> Op {
        Op::Release { mode, keys: self.lock(name), owner: self.owners[0], meta: true }
    }

    pub(super) async fn locks(&self) -> Outcome {
        let place = Place { waiter: 1, waited: Duration::ZERO, needs: Duration::ZERO };
        let one = LockMode::Exclusive;
        let mut ops = vec![
            self.acquire("lock", one, 0, None),
            self.extend("lock", one, Some(b"probe"[..].into())),
            self.acquire("lock", one, 1, Some(IfHeld::Queue(place))),
            Op::Inspect { keys: self.lock("lock"), wait: false },
            self.release("lock", one),
        ];
        let keys = LockKeys::many(vec![self.lock("one"), self.lock("two")]);
        let (owner, proposal) = (self.owners[0], self.token);
        ops.extend([
            Op::Acquire { mode: one, keys: keys.clone(), owner, ttl: TTL, proposal, if_held: None },
            Op::Release { mode: one, keys, owner, meta: false },
        ]);
        self.run(ops, "acquired, extended, queued for, released; two names at once").await
    }

    pub(super) async fn shared(&self) -> Outcome {
        let permit = LockMode::Slot(Slots::any(3));
        let ops = vec![
            self.acquire("read", LockMode::Shared, 0, None),
            self.acquire("read", LockMode::Shared, 1, None),
            self.extend("read", LockMode::Shared, None),
            self.release("read", LockMode::Shared),
            self.acquire("permit", permit, 0, None),
            self.release("permit", permit),
        ];
        self.run(ops, "two readers beside each other, a permit").await
    }

    pub(super) async fn keys(&self) -> Outcome {
        let key: Arc<str> = trial_key(self.trial, "record").into();
        let (owner, fingerprint, accepted) = (self.owners[0], None, Duration::ZERO);
        let claim = Claim {
            key: Arc::clone(&key),
            owner,
            lease: TTL,
            retention: KEPT,
            proposal: self.token,
            fingerprint,
            force: false,
            born: None,
            accepted,
            created: None,
            wait: false,
        };
        let (_, replies) = self.batch(vec![Op::Claim(claim)]).await?;
        let Some(Reply::Claimed { fence, .. }) = replies.first() else {
            return Err(Failure::Refused(format!("palisade's script answered {replies:?}")));
        };
        let token = FencingToken::new(*fence);
        let ballot = Ballot { key: Arc::clone(&key), owner, token, retention: KEPT, fingerprint };
        let ops = vec![
            Op::Steps { ballot: ballot.clone(), list: b"step"[..].into() },
            Op::Complete { ballot, value: Some(b"result"[..].into()) },
            Op::Lookup { key, retention: KEPT, fingerprint, born: None, accepted },
        ];
        self.run(ops, "a key claimed, a step and a result stored and read").await
    }

    pub(super) async fn election(&self) -> Outcome {
        let (key, owner) = (trial_key(self.trial, "candidates").into(), self.owners[0]);
        let entry = Some(b"probe"[..].into());
        let mut ops = vec![Op::Enlist(Enlist { key, owner, ttl: TTL, entry, news: true })];
        ops.push(self.acquire("leader", LockMode::Exclusive, 0, None));
        ops.push(self.extend("leader", LockMode::Exclusive, Some(b"value"[..].into())));
        self.run(ops, "a candidate enlisted, a leader with a value").await
    }

    /// Whoever waits when the subscription becomes ready is woken without a hint, so the first
    /// round proves nothing.
    pub(super) async fn waking(&self) -> Outcome {
        let mut hints = self.node.events();
        for name in ["first", "second"] {
            let held = |who, if_held| self.acquire(name, LockMode::Exclusive, who, if_held);
            self.batch(vec![held(0, None), held(1, Some(IfHeld::Watch))]).await?;
            self.batch(vec![self.release(name, LockMode::Exclusive)]).await?;
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

    async fn run(&self, ops: Vec<Op>, done: &str) -> Outcome {
        self.batch(ops).await.map(|_| done.to_owned())
    }

    /// A server that evicted keys before grants only after a quarantine, here of [`TTL`].
    async fn batch(&self, ops: Vec<Op>) -> Result<(Facts, Vec<Reply>), Failure> {
        let (mut facts, mut replies) = self.send(ops.clone()).await?;
        let left = replies.iter().filter_map(|reply| match reply {
            Reply::Quarantined { remaining, .. } => Some(*remaining),
            _ => None,
        });
        if let Some(left) = left.max() {
            sleep(left.min(2 * TTL)).await;
            (facts, replies) = self.send(ops.clone()).await?;
        }
        let is_odd = |(op, reply): &(&Op, &Reply)| match (op, reply) {
            (Op::Acquire { owner, .. }, Reply::Held { .. } | Reply::Queued { .. }) => {
                *owner == self.owners[0]
            }
            (_, Reply::Absent | Reply::NotOwner | Reply::Quarantined { .. }) => true,
            _ => false,
        };
        match ops.iter().zip(&replies).find(is_odd) {
            Some((_, odd)) => Err(Failure::Refused(format!("palisade's script answered {odd:?}"))),
            None => Ok((facts, replies)),
        }
    }

    async fn send(&self, ops: Vec<Op>) -> Result<(Facts, Vec<Reply>), Failure> {
        if let Some(why) = &self.dead {
            return Err(why.clone());
        }
        let (not_after, remembers) = (None, Remembered::default());
        let batch = Batch { terms: TERMS, not_after, remembers, ops };
        let replies = self.node.call(batch, SystemEnv.now() + self.within).await;
        let items: Result<Vec<_>, _> = replies.items.into_iter().collect();
        let items = items.map_err(|e| Failure::of(&e))?;
        let facts = replies.facts.ok_or_else(|| Failure::Unknown("no facts".to_owned()))?;
        Ok((facts, items))
    }
}

impl Failure {
    fn of(e: &NodeError) -> Self {
        let why = e.to_string();
        match e.fault() {
            NodeFault::NoPermission => Self::LacksRight(why),
            fault if PASSING.contains(&fault) => Self::Unknown(why),
            _ => Self::Refused(why),
        }
    }
}

/// Returns the keys of all ops of this trial.
pub(super) fn keys(trial: u64) -> Vec<String> {
    let key = |name: &&str| trial_key(trial, name);
    let mut all: Vec<String> = [MARKER, NOTE, "record", "candidates"].iter().map(key).collect();
    for name in ["lock", "one", "two", "read", "permit", "leader", "first", "second"] {
        let keys = LockKeys::new(&trial_key(trial, name));
        all.extend([keys.lock(), keys.fence(), keys.queue(), keys.meta()].map(str::to_owned));
    }
    all
}
