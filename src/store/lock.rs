//! An exclusive lock as a server has shown it, and the row that this is.

use std::sync::Arc;

use crate::op::{Op, Slots};
use crate::rules::header::Header;
use crate::rules::locks::{Held, Row, Slot};
use crate::token::OwnerToken;

const OWNER_LEN: usize = 22;
const SLOT: usize = OWNER_LEN + 13 + 16;
const SLOTS_MAX: usize = Slots::MAX as usize;
const MILLIS: u64 = 1_000_000;
/// Of the shortest text that another program wrote, whatever it is.
const FENCE_LEN: usize = 19;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) main: Main,
    /// Ms until the main key expires; -1 without an expiry.
    pub(crate) left: i64,
    pub(crate) fence: Text,
    pub(crate) meta: Option<Vec<u8>>,
    /// Time in ms until which the lock is kept after a handover, if an acquire has noted it.
    pub(crate) kept: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Main {
    None,
    /// It may be cut behind the length of an owner token.
    Text(Vec<u8>),
    /// The number of all, and some of them, with their ends in ms.
    Readers(u32, Vec<(OwnerToken, u64)>),
    /// Of another type.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Text {
    None,
    Is(Vec<u8>),
    /// Of another type.
    Other,
}

impl Shown {
    /// What the owner of a lock assumes.
    pub(crate) fn held(op: &Op) -> Self {
        let owner = op.owner().map_or("", OwnerToken::as_str);
        let fence = match op {
            Op::Raise { token, .. } | Op::Extend { token, .. } => {
                Text::Is(token.get().to_string().into_bytes())
            }
            _ => Text::None,
        };
        Self { left: 1, fence, ..Self::of(Main::Text(owner.into())) }
    }

    /// All that is known is what the main key has.
    pub(crate) fn of(main: Main) -> Self {
        Self { main, left: -1, fence: Text::None, meta: None, kept: None }
    }

    /// `None` if another program wrote it.
    pub(crate) fn fence(&self) -> Option<u64> {
        match &self.fence {
            Text::None => Some(0),
            Text::Is(text) if text.len() < FENCE_LEN && text.iter().all(u8::is_ascii_digit) => {
                std::str::from_utf8(text).ok()?.parse().ok()
            }
            Text::Is(_) | Text::Other => None,
        }
    }

    /// A fence of another program is above every token. Its end is not known: it may be as near as
    /// can be.
    pub(crate) fn row(&self, h: &Header) -> Row {
        let mut row = Row::default();
        row.fence = self.fence().unwrap_or(u64::MAX);
        if self.fence != Text::None {
            row.fence_till = h.now + 1;
        }
        let left = u64::try_from(self.left.max(1)).unwrap_or(1);
        let till = h.now.saturating_add(left.saturating_mul(MILLIS));
        let meta = self.meta.as_deref().map(Arc::from);
        let held = |owner| Held { owner, till: (self.left != -1).then_some(till), meta };
        let keep = |till: u64| h.settling.then_some((h.settles_till, till));
        row.kept = self.kept.and_then(|till| keep(till.saturating_mul(MILLIS)));
        match &self.main {
            Main::None => {}
            Main::Text(text) => match OwnerToken::parse(text) {
                None if slots(text).is_some() => {
                    row.slots = slots(text).unwrap_or_default();
                    row.fence_till = till;
                }
                Some(OwnerToken::KEPT) if h.settling && row.fence_till > 0 => row.kept = keep(till),
                Some(value) if stands_for_nobody(text) => row.reserved = Some((value, till)),
                owner => row.held = Some(held(owner)),
            },
            Main::Readers(_, some) => {
                let ends =
                    |(owner, till): &(OwnerToken, u64)| (*owner, till.saturating_mul(MILLIS));
                row.readers = some.iter().map(ends).collect();
            }
            Main::Other => row.held = Some(held(None)),
        }
        row
    }
}

/// Of a semaphore: for each slot 22 characters of its owner, 13 digits of the end in ms, and 16 of
/// the fence (`src/node/lua/slots.lua`).
fn slots(text: &[u8]) -> Option<Vec<Slot>> {
    let (slots, rest) = text.as_chunks::<SLOT>();
    let is_ours = |c: &u8| c.is_ascii_alphanumeric() || b"_.-".contains(c);
    if !rest.is_empty() || !slots.first()?.iter().all(is_ours) || slots.len() > SLOTS_MAX {
        return None;
    }
    let number = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let slot = |text: &[u8; SLOT]| {
        let (own, numbers) = text.split_at(OWNER_LEN);
        let (till, fence) = numbers.split_at(13);
        let (Some(till), Some(fence)) = (number(till), number(fence)) else {
            return Slot::default();
        };
        Slot { owner: OwnerToken::parse(own), till: u64::saturating_mul(till, MILLIS), fence }
    };
    Some(slots.iter().map(slot).collect())
}

/// The lock is free, but reserved or kept.
fn stands_for_nobody(text: &[u8]) -> bool {
    let kinds = |c: &u8| c.is_ascii_hexdigit() || matches!(c, b'-' | b'r');
    text.starts_with(b"------") && text.get(6).is_some_and(kinds)
}
