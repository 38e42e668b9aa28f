//! The numbered slots of a semaphore.

use std::time::Duration;

use crate::token::OwnerToken;

/// Slots of a semaphore that an op concerns. A permit is a grant of one slot, and a semaphore of
/// `of` permits has the slots `0..of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slots {
    /// Number of slots, 1 to [`Slots::MAX`].
    pub of: u16,
    /// Slot that the op asks for: any free slot, or one number.
    pub want: Want,
}

/// Slot that an op on a semaphore asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// The first free slot in the order `start`, `start + step`, … modulo the number of slots. The
    /// step has no factor in common with that number, so the order contains each slot once. In a
    /// release, this means the slot that the owner has, whatever its number.
    First {
        /// First slot of the order in which a node looks for a free slot.
        start: u16,
        /// Distance between two slots that follow each other in the order in which a node looks.
        step: u16,
    },
    /// The slot of the semaphore with this number.
    Exactly(u16),
}

impl Slots {
    /// Most slots of a semaphore.
    pub const MAX: u16 = 256;

    /// Makes the request for any slot of a semaphore with `of` slots, the lowest free one first.
    pub const fn any(of: u16) -> Self {
        Self { of, want: Want::First { start: 0, step: 1 } }
    }

    /// Returns the request for any slot, in an order that depends on this owner's token. Callers
    /// with different orders seldom try the same slot at the same time (semaphore 7).
    #[must_use]
    pub fn in_order_of(self, owner: &OwnerToken) -> Self {
        let of = u64::from(self.of.max(1));
        let hash = owner.as_str().bytes().fold(0, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17)
        });
        let step = (0..of).map(|i| (hash / of + i) % of).find(|step| gcd(*step, of) == 1);
        let number = |n: u64| u16::try_from(n).unwrap_or_default();
        let (start, step) = (number(hash % of), number(step.unwrap_or(1)));
        Self { want: Want::First { start, step }, ..self }
    }

    /// Returns the request for exactly this slot.
    #[must_use]
    pub fn exactly(self, slot: u16) -> Self {
        Self { want: Want::Exactly(slot), ..self }
    }

    /// Returns the slot that the op asks for; `None` if it asks for any slot.
    pub fn slot(self) -> Option<u16> {
        match self.want {
            Want::First { .. } => None,
            Want::Exactly(slot) => Some(slot),
        }
    }

    pub(crate) fn are_there(self) -> bool {
        (1..=Self::MAX).contains(&self.of) && self.slot().is_none_or(|slot| slot < self.of)
    }

    pub(crate) fn order(self) -> impl Iterator<Item = u16> {
        let (start, step, n) = match self.want {
            Want::First { start, step } => (start, step, self.of),
            Want::Exactly(slot) => (slot, 0, 1),
        };
        let of = u32::from(self.of.max(1));
        (0..u32::from(n)).map(move |i| {
            let slot = (u32::from(start) + i * u32::from(step)) % of;
            u16::try_from(slot).unwrap_or_default()
        })
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A permit on a node: a slot with its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotGrant {
    /// Number of the slot.
    pub slot: u16,
    /// Token of the owner.
    pub owner: OwnerToken,
    /// Fence of the slot: the last fencing token that the node gave for it.
    pub fence: u64,
    /// Time until the grant expires.
    pub remaining: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_contains_each_slot_once() {
        for of in 1..=Slots::MAX {
            for bits in 0..20_u128 {
                let owner = OwnerToken::from_random((bits << 100) | (bits * 7_919));
                let order = Slots::any(of).in_order_of(&owner).order();
                let mut all: Vec<_> = order.collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..of), "{of} {bits}");
            }
        }
    }

    #[test]
    fn owners_begin_at_different_slots() {
        let starts: std::collections::BTreeSet<_> = (0..200_u128)
            .map(|bits| {
                let owner = OwnerToken::from_random(bits.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                Slots::any(10).in_order_of(&owner).order().take(2).collect::<Vec<_>>()
            })
            .collect();
        // 10 first slots, with 4 steps each.
        assert!(starts.len() > 30, "{}", starts.len());
    }
}
