//! State outside the simulated processes: true time, the trace of events, the rules, and the leases
//! on which the holders rely.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::HandOver;
use tokio::time::Instant;

use crate::invariants::{Rule, Violation, all};
use crate::plan::Guarantees;
use crate::trace::{Event, HoldId, Trace};

/// Remaining validity of a guard, as its holder sees it: a function that reads the clock of its
/// process and has no side effects. It returns `None` after the guard was dropped.
pub(crate) type Belief = Box<dyn Fn() -> Option<Duration> + Send>;

/// State of one simulated run, outside its processes and nodes.
pub(crate) struct World {
    pub(crate) start: Instant,
    /// Number of nodes that must have a grant on their replicas. Zero means that replicas are not
    /// required.
    kept_on: usize,
    inner: Mutex<Inner>,
    /// Tickets of locks that are handed over, by name, in the order in which they were sent.
    tickets: Mutex<Vec<(u16, HandOver)>>,
}

struct Inner {
    trace: Trace,
    rules: Vec<Rule>,
    violation: Option<Violation>,
    beliefs: Vec<Believer>,
    next_hold: HoldId,
    next_value: u64,
    /// Grants that the replicas have confirmed: node, number of the name, and fencing token.
    kept: BTreeSet<(usize, u16, u64)>,
    /// For each name, the largest token of a write at the resource that the lock protects, and the
    /// largest token of a read.
    resources: BTreeMap<u16, (u64, u64)>,
    /// For each name, the largest token of a holder that took the lock over.
    overruled: BTreeMap<u16, u64>,
}

struct Believer {
    hold: HoldId,
    name: u16,
    client: usize,
    belief: Belief,
    token: u64,
    requested_at: u64,
    /// Time since which the holder has relied on its lease.
    since: u64,
    /// True if the lock was taken over from a holder, which may not have detected the takeover yet.
    is_taker: bool,
    /// True if the holder is a reader.
    shared: bool,
    /// True after the holder's lease was found invalid once. It must never be valid again.
    lapsed: bool,
}

/// A holder whose lease is valid now.
struct Claimant {
    hold: HoldId,
    name: u16,
    token: u64,
    requested_at: u64,
    is_taker: bool,
    shared: bool,
}

impl Claimant {
    fn of(b: &Believer) -> Self {
        let &Believer { hold, name, token, requested_at, is_taker, shared, .. } = b;
        Self { hold, name, token, requested_at, is_taker, shared }
    }

    /// Returns true if the two holders must not be valid at the same time.
    fn excludes(&self, other: &Self) -> bool {
        let took = |taker: &Self, from: &Self| {
            taker.is_taker && from.token < taker.token && from.requested_at < taker.requested_at
        };
        let share = self.shared && other.shared;
        self.name == other.name && !share && !took(self, other) && !took(other, self)
    }
}

impl World {
    pub(crate) fn new(start: Instant, kept_on: usize, guarantees: Guarantees) -> Arc<Self> {
        let inner = Inner {
            trace: Trace::default(),
            rules: all(guarantees),
            violation: None,
            beliefs: Vec::new(),
            next_hold: 0,
            next_value: 0,
            resources: BTreeMap::new(),
            overruled: BTreeMap::new(),
            kept: BTreeSet::new(),
        };
        Arc::new(Self { start, kept_on, inner: Mutex::new(inner), tickets: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the true time since the start of the run, in nanoseconds.
    pub(crate) fn nanos(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Returns the true time since the start of the run, in microseconds.
    pub(crate) fn micros(&self) -> u64 {
        self.nanos() / 1_000
    }

    /// Records an event. Then compares all holders that rely on a lease, to find two that exclude
    /// each other.
    pub(crate) fn tell(&self, event: Event) {
        let at = self.micros();
        let mut inner = self.inner();
        inner.tell(at, event);
        inner.compare(at);
    }

    /// Registers a new holder when the user's code receives the guard. `is_taker` is true if the
    /// lock was taken over from another holder.
    pub(crate) fn holds(
        &self,
        (client, name): (usize, u16),
        (token, is_taker, shared): (u64, bool, bool),
        requested_at: u64,
        belief: Belief,
    ) -> HoldId {
        let at = self.micros();
        let mut inner = self.inner();
        let left = belief().unwrap_or_default().as_micros() as u64;
        if is_taker {
            let overruled = inner.overruled.entry(name).or_default();
            *overruled = token.max(*overruled);
        }
        let terms = (token, is_taker, shared);
        let hold = inner.believes((client, name), terms, (requested_at, at), belief);
        inner.tell(
            at,
            Event::Holds { hold, client, name, token, is_taker, shared, requested_at, left },
        );
        let nodes = inner.kept.iter().filter(|k| (k.1, k.2) == (name, token)).count();
        if nodes < self.kept_on {
            inner.tell(at, Event::Unkept { client, name, token, nodes });
        }
        inner.compare(at);
        hold
    }

    /// Registers the claim of a handler, and the function for its remaining validity.
    pub(crate) fn claims(
        &self,
        (client, name): (usize, u16),
        token: u64,
        belief: Belief,
    ) -> HoldId {
        let at = self.micros();
        let mut inner = self.inner();
        let hold = inner.believes((client, name), (token, false, false), (at, at), belief);
        inner.compare(at);
        hold
    }

    /// Records that a client received "no holder" for a name. The client sent its request at
    /// `requested_at`.
    pub(crate) fn vacant(&self, (client, name): (usize, u16), requested_at: u64) {
        let at = self.micros();
        let mut inner = self.inner();
        // A lease that ended never becomes valid again. So a holder that began before the request
        // and is valid now was valid in between.
        let believer = inner.beliefs.iter().find(|b| {
            let is_valid = || (b.belief)().is_some_and(|left| !left.is_zero());
            b.name == name && b.since < requested_at && !b.lapsed && is_valid()
        });
        let hold = believer.map(|b| b.hold);
        inner.tell(at, Event::Vacant { client, name, requested_at, hold });
    }

    pub(crate) fn kept(&self, node: usize, name: u16, fence: u64) {
        self.inner().kept.insert((node, name, fence));
    }

    pub(crate) fn next_value(&self) -> u64 {
        let mut inner = self.inner();
        inner.next_value += 1;
        inner.next_value
    }

    /// Sends a hand-over ticket to all clients. It may be delivered more than once.
    pub(crate) fn send_ticket(&self, name: u16, ticket: HandOver) {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner).push((name, ticket));
    }

    pub(crate) fn ticket(&self, name: u16) -> Option<HandOver> {
        let tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.iter().rfind(|(of, _)| *of == name).map(|(_, ticket)| ticket.clone())
    }

    /// Removes a holder, which no longer counts as valid. Call this before the holder gives up its
    /// lease.
    pub(crate) fn parts(&self, hold: HoldId) {
        self.inner().beliefs.retain(|b| b.hold != hold);
    }

    pub(crate) fn forget_client(&self, client: usize) {
        self.inner().beliefs.retain(|b| b.client != client);
    }

    /// Applies a write or a read at the resource.
    ///
    /// The resource refuses a write if its token is smaller than that of an earlier write, or not
    /// larger than that of an earlier read. The resource refuses a read if its token is smaller
    /// than that of an earlier write (readers, tokens).
    pub(crate) fn uses(&self, (hold, shared): (HoldId, bool), name: u16, token: u64) {
        let at = self.micros();
        let mut inner = self.inner();
        let (written, read) = inner.resources.entry(name).or_default();
        let accepted = token >= *written && (shared || token > *read);
        let largest = if shared { read } else { written };
        *largest = token.max(*largest);
        // After a takeover, the earlier holder does not count as valid, even if it has not detected
        // the takeover yet.
        let overruled = inner.overruled.get(&name).is_some_and(|most| token < *most);
        let valid = !overruled
            && inner.beliefs.iter().any(|b| {
                b.hold == hold && !b.lapsed && (b.belief)().is_some_and(|left| !left.is_zero())
            });
        inner.tell(at, Event::Write { hold, name, token, shared, valid, accepted });
    }

    pub(crate) fn violation(&self) -> Option<Violation> {
        self.inner().violation.clone()
    }

    pub(crate) fn take_trace(&self) -> (u64, Vec<(u64, Event)>) {
        let mut inner = self.inner();
        (inner.trace.hash(), std::mem::take(&mut inner.trace.events))
    }
}

impl Inner {
    /// Registers a holder that relies on its lease since the time `since`. Returns a new number for
    /// the hold.
    fn believes(
        &mut self,
        (client, name): (usize, u16),
        (token, is_taker, shared): (u64, bool, bool),
        (requested_at, since): (u64, u64),
        belief: Belief,
    ) -> HoldId {
        let (hold, lapsed) = (self.next_hold, false);
        self.next_hold += 1;
        self.beliefs.push(Believer {
            hold,
            name,
            client,
            belief,
            token,
            requested_at,
            since,
            is_taker,
            shared,
            lapsed,
        });
        hold
    }

    fn tell(&mut self, at: u64, event: Event) {
        self.trace.push(at, event);
        if self.violation.is_some() {
            return;
        }
        for rule in &mut self.rules {
            if let Err(what) = (rule.see)(at, &event) {
                let (invariant, source) = (rule.name, rule.source);
                self.violation = Some(Violation { invariant, source, what });
                return;
            }
        }
    }

    /// Looks for two valid holders that exclude each other, and for a lease that became valid
    /// again. Called after each event.
    fn compare(&mut self, at: u64) {
        if self.beliefs.is_empty() || self.violation.is_some() {
            return;
        }
        let mut news: Vec<Event> = Vec::new();
        let mut valid: Vec<Claimant> = Vec::new();
        self.beliefs.retain_mut(|b| {
            let Some(left) = (b.belief)() else { return false };
            if left.is_zero() {
                b.lapsed = true;
            } else if b.lapsed {
                news.push(Event::Revived { hold: b.hold, client: b.client });
            } else {
                let this = Claimant::of(b);
                if let Some(other) = valid.iter().find(|other| this.excludes(other)) {
                    let (first, name) = (other.hold, b.name);
                    news.push(Event::Overlap { first, second: b.hold, name });
                }
                valid.push(this);
            }
            true
        });
        for event in news {
            self.tell(at, event);
        }
    }
}
