//! What clients have in common: what they are told, what they send, and what they report.

use std::cell::RefCell;

use palisade::internal::model::{
    Answer, Extend, Extension, Grant, Known, Machine, Progress, Times,
};
use palisade::node::spi::{Op, OwnerToken, QuarantineId};
use palisade::{FencingToken, Moment};

use crate::bug::Bug;
use crate::key::KeyClient;
use crate::lock::LockClient;
use crate::spec::{NODES, Now, Role, TERMS, TTL};

#[derive(Clone, Debug)]
pub(crate) enum Client {
    Lock(LockClient),
    Key(KeyClient),
    Dead,
}

/// An act of a client, or what reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    Begin,
    Extend,
    Downgrade,
    Release,
    Finish,
    Fail,
    /// Its timer may be due.
    Time,
    /// Its timer is due before the next tick.
    Timer,
}

#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) tag: Tag,
    pub(crate) answer: Answer,
    pub(crate) history: Option<QuarantineId>,
}

/// Which request of a client it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) owner: u8,
    pub(crate) round: u64,
    /// How long the node keeps at least what it grants.
    pub(crate) until: Moment,
}

pub(crate) const RELEASE: u64 = 100;
pub(crate) const STORE: u64 = 101;
pub(crate) const LOOK: u64 = 102;

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) tag: Tag,
    pub(crate) deadline: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Write,
    Read,
    Slot(u16),
}

/// What the judge is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Won(u64, Hold),
    /// A writer with this token has become a reader.
    Downgraded(u64),
    /// A handler has begun.
    Ran,
    /// It has had no effect.
    Undone,
    /// A caller has been told this result.
    Saw(u8),
    Wrong(&'static str),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Out {
    pub(crate) requests: Vec<(usize, Request)>,
    pub(crate) news: Vec<News>,
}

impl Out {
    pub(crate) fn send(&mut self, node: usize, op: Op, tag: Tag, deadline: Option<Moment>) {
        self.requests.push((node, Request { op, tag, deadline }));
    }

    pub(crate) fn send_all(&mut self, op: &Op, tag: Tag, deadline: Option<Moment>) {
        (0..NODES).for_each(|node| self.send(node, op.clone(), tag, deadline));
    }

    /// After an attempt that has lost.
    pub(crate) fn undo(&mut self, now: &Now<'_>, op: &Op, grant: &Grant, owner: u8) {
        if !now.spec.has(Bug::NoUndo) {
            self.give_back(op, grant, owner);
        }
    }

    /// Gives back what nodes may have granted.
    pub(crate) fn give_back(&mut self, op: &Op, grant: &Grant, owner: u8) {
        let tag = Tag { owner, round: RELEASE, until: Moment::default() };
        for node in (0..NODES).filter(|node| grant.may_hold(*node)) {
            self.send(node, op.clone(), tag, None);
        }
    }
}

/// The owner token of the `number`-th attempt. Its first letters, which are shown, tell it apart.
pub(crate) fn owner_token(number: u8) -> OwnerToken {
    OwnerToken::from_random(u128::from(number) << 108)
}

impl Client {
    pub(crate) fn new(role: &Role) -> Self {
        match role {
            Role::Lock(_) => Self::Lock(LockClient::default()),
            Role::Key { .. } => Self::Key(KeyClient::default()),
        }
    }

    pub(crate) fn acts(&self, now: &Now<'_>) -> Vec<Act> {
        match self {
            Self::Lock(client) => client.acts(now),
            Self::Key(client) => client.acts(now),
            Self::Dead => Vec::new(),
        }
    }

    pub(crate) fn act(&mut self, now: &Now<'_>, act: Act) -> Out {
        match self {
            Self::Lock(client) => client.act(now, act),
            Self::Key(client) => client.act(now, act),
            Self::Dead => Out::default(),
        }
    }

    pub(crate) fn hear(&mut self, now: &Now<'_>, node: usize, delivery: &Delivery) -> Out {
        match self {
            Self::Lock(client) => client.hear(now, node, delivery),
            Self::Key(client) => client.hear(now, node, delivery),
            Self::Dead => Out::default(),
        }
    }

    /// What it relies on now, and its token.
    pub(crate) fn believes(&self, tick: Moment) -> Option<(Hold, u64)> {
        match self {
            Self::Lock(client) => client.believes(tick),
            Self::Key(_) | Self::Dead => None,
        }
    }

    /// It acquires a lock, claims a key or stores a result.
    pub(crate) fn is_asking(&self) -> bool {
        match self {
            Self::Lock(client) => client.is_asking(),
            Self::Key(client) => client.is_asking(),
            Self::Dead => false,
        }
    }

    /// It has not begun.
    pub(crate) fn is_fresh(&self) -> bool {
        match self {
            Self::Lock(client) => client.is_fresh(),
            Self::Key(client) => client.is_fresh(),
            Self::Dead => false,
        }
    }

    /// Nothing of it is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Self::Lock(client) => client.is_quiet(),
            Self::Key(client) => client.is_quiet(),
            Self::Dead => true,
        }
    }
}

thread_local! {
    /// The grant and the deadline of the lease that is renewed, as the machine sees them.
    static LEASE: RefCell<Option<(Grant, Moment)>> = const { RefCell::new(None) };
}

fn known(node: usize) -> Known {
    LEASE.with_borrow(|lease| {
        let (grant, until) = lease.as_ref().expect("a lease is renewed");
        grant.known(node, *until)
    })
}

/// The renewal of a lease, as `client/extend.rs` makes it.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    machine: Extend<fn(usize) -> Known>,
    round: u64,
    kept: Moment,
    old: Moment,
    pub(crate) wait: Moment,
}

/// What a renewal is of.
pub(crate) struct Lease<'a> {
    pub(crate) owner: u8,
    pub(crate) grant: &'a mut Grant,
    pub(crate) until: Moment,
    pub(crate) extension: Op,
}

impl Renewal {
    pub(crate) fn begin(
        now: &Now<'_>,
        lease: &mut Lease<'_>,
        out: &mut Out,
    ) -> (Self, Option<Extension>) {
        let kept = palisade::internal::model::valid_until(now.tick, TTL, now.spec.drift());
        let round = lease.grant.next_round();
        let deadline = now.deadline();
        let (old, deadline) = if now.spec.has(Bug::RevivesLapsedLease) {
            (kept, kept)
        } else {
            (lease.until, deadline)
        };
        let times = Times { old, new: kept, deadline, max_ttl: TERMS.max_ttl };
        LEASE.set(Some((lease.grant.clone(), lease.until)));
        let known: fn(usize) -> Known = known;
        let machine = Extend::new(NODES, lease.extension.clone(), times, known);
        let mut renewal = Self { machine, round, kept, old, wait: now.at };
        let asks = renewal.machine.ask_all(now.tick);
        renewal.send(now, lease, asks, out);
        let result = renewal.on_time(now, lease, out);
        (renewal, result)
    }

    pub(crate) fn is_of(&self, tag: Tag) -> bool {
        self.round == tag.round
    }

    fn send(&self, now: &Now<'_>, lease: &mut Lease<'_>, asks: Vec<(usize, Op)>, out: &mut Out) {
        let tag = Tag { owner: lease.owner, round: self.round, until: self.kept };
        for (node, op) in asks {
            lease.grant.extended(node);
            out.send(node, op, tag, Some(now.deadline().min(self.old)));
        }
    }

    fn follow(
        &mut self,
        now: &Now<'_>,
        lease: &mut Lease<'_>,
        progress: Progress<Extension>,
        out: &mut Out,
    ) -> Option<Extension> {
        match progress {
            Progress::Wait(at) => self.wait = at,
            Progress::Send(asks, at) => {
                self.wait = at;
                if now.at < lease.until {
                    self.send(now, lease, asks, out);
                }
            }
            Progress::Decided(result) => return Some(result),
        }
        None
    }

    pub(crate) fn on_reply(
        &mut self,
        now: &Now<'_>,
        lease: &mut Lease<'_>,
        (node, answer): (usize, &Answer),
        out: &mut Out,
    ) -> Option<Extension> {
        LEASE.set(Some((lease.grant.clone(), lease.until)));
        let progress = self.machine.on_reply(now.at, node, answer);
        self.follow(now, lease, progress, out)
    }

    pub(crate) fn on_time(
        &mut self,
        now: &Now<'_>,
        lease: &mut Lease<'_>,
        out: &mut Out,
    ) -> Option<Extension> {
        LEASE.set(Some((lease.grant.clone(), lease.until)));
        let progress = self.machine.on_time(now.at);
        self.follow(now, lease, progress, out)
    }
}

pub(crate) fn token(value: u64) -> FencingToken {
    FencingToken::new(value)
}
