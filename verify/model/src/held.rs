//! A claim of a key that is held, and the ops of a key.

use std::time::Duration;

use palisade::internal::model::{Extension, Grant};
use palisade::node::spi::{Ballot, Claim, ClaimEnd, Op, RecordKey, StoredRecord};
use palisade::{FencingToken, Moment};

use crate::client::{Lease, Out, Renewal, owner_token};
use crate::spec::{Now, RETENTION, TTL};

/// A claim that is held.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) owner: u8,
    pub(crate) token: FencingToken,
    pub(crate) grant: Grant,
    pub(crate) until: Moment,
    pub(crate) renewal: Option<Renewal>,
}

pub(crate) fn key() -> RecordKey {
    "k".into()
}

pub(crate) fn unclaim(owner: u8, end: ClaimEnd) -> Op {
    Op::Unclaim { key: key(), owner: owner_token(owner), end }
}

pub(crate) fn value_of(record: &StoredRecord) -> u8 {
    record.value.as_ref().map_or(0, |bytes| bytes[0])
}

pub(crate) fn claim(owner: u8, proposal: u64, force: bool) -> Op {
    Op::Claim(Claim {
        key: key(),
        owner: owner_token(owner),
        lease: TTL,
        retention: RETENTION,
        proposal,
        fingerprint: None,
        force,
        born: None,
        accepted: Duration::ZERO,
        created: None,
        wait: false,
    })
}

impl Held {
    pub(crate) fn ballot(&self) -> Ballot {
        Ballot {
            key: key(),
            owner: owner_token(self.owner),
            token: self.token,
            retention: RETENTION,
            fingerprint: None,
        }
    }

    pub(crate) fn lease(&mut self) -> (&mut Option<Renewal>, Lease<'_>) {
        let extension = Op::ExtendClaim { ballot: self.ballot(), lease: TTL, reassert: None };
        let Self { renewal, owner, grant, until, .. } = self;
        (renewal, Lease { owner: *owner, grant, until: *until, extension })
    }

    pub(crate) fn extend(&mut self, now: &Now<'_>, out: &mut Out) -> Option<Extension> {
        let (renewal, mut lease) = self.lease();
        let (begun, result) = Renewal::begin(now, &mut lease, out);
        *renewal = Some(begun);
        result
    }

    pub(crate) fn extended(&mut self, now: &Now<'_>, result: &Extension) {
        self.renewal = None;
        match result {
            Extension::Until(until) if now.at < self.until => self.until = self.until.max(*until),
            Extension::Unknown(_) if now.at < self.until => {}
            // Lost: the claim ends now.
            _ => self.until = self.until.min(now.at),
        }
    }
}
