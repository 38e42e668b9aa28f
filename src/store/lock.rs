//! A lock as a server has shown it, and the row that this is.

use std::sync::Arc;
use std::time::Duration;

use super::record::MILLIS;
use crate::op::{LockMode, Op, Place, Slots};
use crate::rules::header::Header;
use crate::rules::locks::{Held, Row, Slot, Waiter};
use crate::token::OwnerToken;

const OWNER_LEN: usize = 22;
/// Of a place in the queue.
const PLACE: usize = 48;
const SLOT: usize = OWNER_LEN + 13 + 16;
const SLOTS_MAX: usize = Slots::MAX as usize;
/// From this length on another program wrote it.
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
    /// Empty if it was not asked for.
    pub(crate) queue: Vec<u8>,
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
    /// What the caller assumes: its own grant, or that there is nothing.
    pub(crate) fn held(op: &Op) -> Self {
        let fence = match op {
            Op::Raise { token, .. } | Op::Extend { token, .. } => {
                Text::Is(token.get().to_string().into_bytes())
            }
            _ => Text::None,
        };
        let main = match (op, op.owner().copied()) {
            (Op::Acquire { .. }, _) => Main::None,
            (Op::Extend { mode: LockMode::Shared, .. }, Some(owner)) => {
                Main::Readers(1, vec![(owner, u64::MAX)])
            }
            (_, owner) => Main::Text(owner.as_ref().map_or("", OwnerToken::as_str).into()),
        };
        Self { left: 1, fence, ..Self::of(main) }
    }

    /// All that is known is what the main key has.
    pub(crate) fn of(main: Main) -> Self {
        Self { main, left: -1, fence: Text::None, meta: None, kept: None, queue: Vec::new() }
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
            Main::Readers(count, some) => {
                let ends =
                    |(owner, till): &(OwnerToken, u64)| (*owner, till.saturating_mul(MILLIS));
                row.readers = some.iter().map(ends).collect();
                // If there are many, only those that end last are shown, in order.
                let first = row.readers.first().copied();
                let missing = (*count as usize).saturating_sub(row.readers.len());
                row.readers.extend(first.into_iter().cycle().take(missing));
            }
            Main::Other => row.held = Some(held(None)),
        }
        let places = self.queue.get(1..).unwrap_or_default().as_chunks::<PLACE>().0;
        for waiter in places.iter().filter_map(Waiter::parse) {
            row.wait(waiter);
        }
        row
    }
}

impl Waiter {
    /// As `src/node/lua/wake.lua` describes it.
    fn parse(text: &[u8; PLACE]) -> Option<Self> {
        let is_number = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
        if !text.is_ascii() || !is_number(&text[..16]) || !is_number(&text[33..]) {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        let (since, fresh) = (text[..16].parse().ok()?, text[35..].parse::<u64>().ok()?);
        let needs = Duration::from_millis(text[33..35].parse().ok()?);
        let waiter = u64::from_str_radix(&text[17..33], 16).ok()?;
        let place = Place { waiter, waited: Duration::ZERO, needs };
        let mode = if &text[16..17] == "s" { LockMode::Shared } else { LockMode::Exclusive };
        let (is_fair, fresh_till) = (&text[16..17] == "X", fresh.saturating_mul(MILLIS));
        Some(Self { mode, place, since, is_fair, fresh_till })
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
