//! Random conditional writes of the slots of a semaphore.

use std::fmt::Write as _;

use super::*;
use crate::op::{Slots, Want};
use crate::store::write::{Choose, SlotWrite};

const OF_SLOTS: [Key; 2] = [Key::Main, Key::Queue];

impl Dice {
    /// At most one for each owner.
    pub(super) fn slots(&mut self, now: u64) -> Vec<u8> {
        let mut owners: Vec<_> = (0..3).map(|n| Some(OwnerToken::from_random(n))).collect();
        owners.push(Some(OwnerToken::READERS));
        let mut text = String::new();
        for _ in 0..=self.below(3) {
            let at = self.below(owners.len() as u64) as usize;
            let own = if self.below(3) == 0 { None } else { owners.remove(at) };
            let ends = self.of(&[now - HOUR_MS, now + HOUR_MS, now + HOUR_MS]);
            let fence = self.of(&[0, 3, 49, 50, 1_000_049, 1_000_050, 7_000_000]);
            text += own.as_ref().map_or("......................", OwnerToken::as_str);
            let _ = write!(text, "{:013}{fence:016}", own.map_or(0, |_| ends));
        }
        let mut text = text.into_bytes();
        if self.below(9) == 0 {
            let at = self.below(text.len() as u64) as usize;
            text[at] = self.of(b" -9x");
        }
        text
    }

    fn slot(&mut self, there: &[u8]) -> SlotWrite {
        let slots: Vec<&[u8]> = there.chunks_exact(51).collect();
        let at = self.below(slots.len() as u64 + 1) as usize;
        let there = slots.get(at).map_or(&[][..], |slot| &slot[..self.of(&[22, 51])]);
        let wrong = self.owner().as_str().as_bytes().to_vec();
        let is_right = self.below(6) > 0 && !there.is_empty();
        let begins = if is_right { there.to_vec() } else { wrong };
        let is_any = begins.len() == 22 && self.below(3) == 0;
        let (owner, ms) = (self.owner(), self.of(&[None, Some(HOUR_MS)]));
        let owner = (self.below(3) > 0).then_some(owner);
        SlotWrite {
            slot: (!is_any).then_some(at as u16),
            begins,
            owner,
            ms: ms.filter(|_| owner.is_some()),
            fence: self.of(&[None, Some(49), Some(2_000_000)]),
        }
    }

    pub(super) fn write_of_slots(&mut self, twin: &Twin) -> Write {
        let chooses = self.below(2) == 0;
        let others = [Class::Grant, Class::Keep, Class::Undo];
        let class = self.of(if chooses { &others[..1] } else { &others });
        let place = self.place();
        let life = self.of(&[None, Some(HOUR_MS), Some(9 * HOUR_MS)]);
        let end = Step::Slots { life, hands_on: self.below(2) == 0 };
        let of = self.of(&[1, 2, 3, 5]);
        let steps = if chooses {
            let start = self.below(of.into()) as u16;
            let first = Slots { of, want: Want::First { start, step: 1 } };
            let slots = self.of(&[first, first, Slots::any(of).exactly(start)]);
            let reserved = self.of(&[None, Some(OwnerToken::READERS)]);
            let (owner, proposal, ttl) = (self.owner(), self.of(&[3, 50]), HOUR_MS);
            let is_new = slots.slot().is_some() && reserved.is_none() && self.below(2) == 0;
            let choose = Choose { slots, owner, proposal, ttl, reserved, is_new };
            let there = twin.text(SEMAPHORE).unwrap_or_default();
            let first = (self.below(3) == 0).then(|| Step::Slot(self.slot(there)));
            [Some(Step::Window), first, Some(Step::Choose(choose)), Some(end)]
                .into_iter()
                .flatten()
                .collect()
        } else {
            let there = twin.text(SEMAPHORE).unwrap_or_default();
            let some = (0..=self.below(2)).map(|_| Step::Slot(self.slot(there)));
            some.collect::<Vec<_>>().into_iter().chain([end]).collect()
        };
        let joins = (class == Class::Grant && self.below(3) > 0).then(|| {
            let place = self.of(&[Waits::Watcher, Waits::Permit(place, of)]);
            Join { place, always: self.below(4) == 0 }
        });
        let look = Extent { slots: true, queue: self.below(2) == 0, ..Extent::default() };
        Write { class, keys: &OF_SLOTS, names: 1, steps, look: Look::Lock(look), joins }
    }
}
