//! Who may have a lock beside whom: one rule for writers, readers, permits, reservations, fair
//! callers, calls that take a lock over, and locks that are kept after a handover.

use std::time::Duration;

use super::{Ask, Row};
use crate::op::{IfHeld, LockMode, Reply};
use crate::rules::header::Header;
use crate::token::OwnerToken;

/// Why an acquire is refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy {
    /// `None` if what is there has no expiry.
    pub(super) remaining: Option<Duration>,
    pub(super) foreign: bool,
}

impl Busy {
    fn ours(remaining: Duration) -> Self {
        Self { remaining: Some(remaining), foreign: false }
    }
}

impl Ask {
    /// Owner from which the lock is taken over, and the largest fence that allows it. In other
    /// modes a take-over counts as an acquire.
    fn taken_from(&self) -> Option<(OwnerToken, u64)> {
        match self.if_held.filter(|_| self.is_writer())? {
            IfHeld::TakeFrom(from) => Some((from, u64::MAX)),
            IfHeld::TakeOnly { from, token } => Some((from, token.get())),
            IfHeld::Watch | IfHeld::Queue(_) | IfHeld::Fair { .. } => None,
        }
    }

    /// It takes a lock from its holder, and not a free one (hand_over 2).
    fn takes_only(&self) -> bool {
        self.is_writer() && !self.many && matches!(self.if_held, Some(IfHeld::TakeOnly { .. }))
    }

    /// It has collected names one by one and takes them all (multi_lock 6).
    pub(super) fn collects(&self) -> bool {
        self.many && matches!(self.if_held, Some(IfHeld::TakeFrom(_)))
    }

    fn reservation(&self) -> Option<OwnerToken> {
        match self.mode {
            LockMode::Shared => Some(OwnerToken::READERS),
            LockMode::Exclusive | LockMode::Slot(_) => {
                self.place().map(|place| OwnerToken::reserved_for(place.waiter))
            }
        }
    }
}

impl Row {
    /// What keeps an acquire out; `None` also if the caller has the lock already or takes it over.
    /// The first that applies:
    ///
    /// | what is there | whom it keeps out |
    /// |---|---|
    /// | a lock of any kind | permits |
    /// | a reservation of another | all but who collects the last of several names |
    /// | no holder | who only takes over |
    /// | a holder, another program's value | all |
    /// | permits | writers, readers |
    /// | readers | writers; if they are 4,096, one more |
    /// | a writer that asked lately and waits for longer | readers |
    /// | a free lock that may still be held after a handover | all |
    /// | fair callers with smaller tickets | fair callers |
    pub(super) fn bar(&mut self, h: &Header, ask: &Ask) -> Option<Busy> {
        if ask.mode.slots().is_some() {
            let till = self.held.as_ref().and_then(|held| held.till);
            let lock = Busy { remaining: till.map(|till| h.until(till)), foreign: true };
            return self.is_lock().then_some(lock);
        }
        if self.has(h, ask) || self.is_given(h, ask) {
            return None;
        }
        if let Some((value, till)) = self.reserved {
            let is_own = ask.reservation() == Some(value);
            if !is_own && !ask.collects() {
                return Some(Busy::ours(h.until(till)));
            }
            // Who has come for its turn has had it. Readers share theirs.
            self.reserved.take_if(|_| is_own && ask.is_writer());
        }
        if ask.takes_only() && self.is_free() {
            return Some(Busy::ours(self.kept_lately(h).unwrap_or_default()));
        }
        if let Some(held) = &self.held {
            let remaining = held.till.map(|till| h.until(till));
            return Some(Busy { remaining, foreign: held.owner.is_none() });
        }
        if !self.slots.is_empty() {
            return Some(Busy { remaining: Some(h.until(self.fence_till)), foreign: true });
        }
        let rest = if ask.mode.is_shared() {
            self.writers_ahead(h, ask).or_else(|| self.full(h))
        } else {
            self.readers.iter().map(|(_, till)| h.until(*till)).max()
        };
        if let Some(rest) = rest {
            return Some(Busy::ours(rest));
        }
        if let Some(rest) = self.kept(h) {
            self.reserved = None;
            return Some(Busy::ours(rest));
        }
        let (place, ticket) = ask.fair()?;
        let (_, ahead) = self.standing(h, &place, ticket);
        ahead.map(Busy::ours)
    }

    /// An extension is refused: another has the lock, or its holders are of another kind.
    pub(super) fn is_anothers(&self, mode: LockMode, owner: OwnerToken) -> bool {
        let is_held = self.held.is_some() && !self.is_owned_by(owner);
        match mode {
            // An extension never makes a reader the writer. Only an acquire can do that.
            LockMode::Exclusive => !self.is_free() && !self.is_owned_by(owner),
            LockMode::Shared => is_held || !self.slots.is_empty(),
            LockMode::Slot(_) => self.held.is_some() || !self.readers.is_empty(),
        }
    }

    pub(super) fn has(&self, h: &Header, ask: &Ask) -> bool {
        match ask.mode {
            LockMode::Shared => self.is_read_by(ask.owner, h.now),
            LockMode::Exclusive | LockMode::Slot(_) => self.is_owned_by(ask.owner),
        }
    }

    /// The caller takes the lock over: it is held by the owner from which it is taken, or already
    /// by the caller because the request was repeated, and its rest is at most the new ttl. So no
    /// take-over shortens the time for which the lock is held.
    pub(super) fn is_given(&self, h: &Header, ask: &Ask) -> bool {
        let Some((from, latest)) = ask.taken_from() else { return false };
        let till = self.held.as_ref().and_then(|held| held.till);
        (self.is_owned_by(from) && self.fence <= latest || self.is_owned_by(ask.owner))
            && till.is_some_and(|till| h.until(till) <= ask.ttl)
    }

    /// (quarantine 11): the rest of the time for which a free lock is kept for its old holder. It
    /// begins when an acquire first asks.
    fn kept(&mut self, h: &Header) -> Option<Duration> {
        if h.settling && self.is_free() && self.fence_till > h.now {
            let begun = self.kept.filter(|(handover, _)| *handover == h.settles_till);
            self.kept = begun.or(Some((h.settles_till, h.after(h.apart()))));
        }
        self.kept_till(h).map(|till| h.until(till))
    }

    /// Where no acquire has asked yet, the time that one would set now.
    pub(super) fn kept_till(&self, h: &Header) -> Option<u64> {
        if !h.settling || !self.is_free() || self.fence_till <= h.now {
            return None;
        }
        let begun = self.kept.filter(|(handover, _)| *handover == h.settles_till);
        Some(begun.map_or(h.after(h.apart()), |(_, till)| till)).filter(|till| *till > h.now)
    }

    /// Of a lock that an acquire has found kept after this handover.
    pub(crate) fn kept_lately(&self, h: &Header) -> Option<Duration> {
        let found = self.kept.filter(|(handover, _)| *handover == h.settles_till);
        found.and_then(|_| self.kept_till(h)).map(|till| h.until(till))
    }

    fn is_lock(&self) -> bool {
        self.held.is_some() || !self.readers.is_empty() || self.reserved.is_some()
    }

    /// Refuses the acquire, and notes the caller as `if_held` asks.
    pub(super) fn refuse(&mut self, h: &Header, ask: &Ask, busy: Busy) -> Reply {
        let Busy { remaining, foreign } = busy;
        if let Some((place, ticket)) = ask.fair() {
            let (queued, _) = self.standing(h, &place, ticket);
            if self.join(h, ask.mode, place, Some(queued.ticket)) {
                return Reply::Queued { remaining, foreign, queued };
            }
        } else if let Some(place) = ask.place() {
            self.join(h, ask.mode, *place, None);
        } else if ask.if_held == Some(IfHeld::Watch) {
            self.watch(h);
        }
        Reply::Held { remaining, foreign }
    }
}
