//! The two tokens: [`OwnerToken`] identifies the holder of a lock, [`FencingToken`] orders the
//! holders.
//!
//! The two are never interchangeable. The owner token is random and fresh for every attempt, so
//! that a repeated or late request can be recognised. The fencing tokens of a lock only grow, and a
//! resource compares them.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A proof of ownership: 128 random bits written as 22 printable ASCII characters.
///
/// Each *attempt* to acquire has a token of its own, so that a release that arrives late can delete
/// only what its own attempt wrote.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerToken([u8; 22]);

impl OwnerToken {
    /// Value in place of an owner token while a lock is free by a node's clock, but kept for a
    /// holder that may still exist after a planned handover. Unlike every random token it begins
    /// with six hyphens.
    pub const KEPT: Self = Self([b'-'; 22]);

    /// Value in the owner's place while a free lock is reserved for the readers that were woken. No
    /// random token begins with six hyphens as it does.
    pub const READERS: Self = Self(*b"------r---------------");

    /// Makes a token of 128 random bits in the 64-letter alphabet (six bits each, most significant
    /// first).
    pub fn from_random(bits: u128) -> Self {
        let mut out = [0_u8; 22];
        for (i, letter) in out.iter_mut().enumerate() {
            let shift = 6 * (21 - i);
            *letter = ALPHABET[(bits >> shift) as usize & 63];
        }
        Self(out)
    }

    /// Returns the value in place of an owner token while a lock is free and reserved for this
    /// waiting handle ([`Place`](crate::op::Place)). Unlike every random token it begins with six
    /// hyphens.
    pub fn reserved_for(waiter: u64) -> Self {
        let mut out = [b'-'; 22];
        for (i, digit) in out[6..].iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(waiter >> (60 - 4 * i)) as usize & 15];
        }
        Self(out)
    }

    /// Returns true if the token stands for no owner: [`KEPT`](Self::KEPT), or a reservation.
    pub(crate) fn is_ownerless(&self) -> bool {
        self.0.starts_with(b"------")
    }

    /// Reads a token back from what a node stores; `None` if it is not a token of palisade.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let bytes: [u8; 22] = text.try_into().ok()?;
        bytes.iter().all(|b| ALPHABET.contains(b)).then_some(Self(bytes))
    }

    /// Returns the 22 characters as stored in Redis.
    pub fn as_str(&self) -> &str {
        // All constructors write only letters of ALPHABET, which is ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for OwnerToken {
    /// Prints the first letters only: whoever knows a token can release the lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerToken({}…)", &self.as_str()[..4])
    }
}

/// A number that orders the holders of a name: each new holder's token is larger than every earlier
/// one.
///
/// Send it to the resource with every write, and let the resource refuse a token that is smaller
/// than one that it has already seen. A token is always below 2^53, so that it survives JSON, Lua
/// and `JavaScript` numbers.
///
/// ```
/// use palisade::FencingToken;
/// let (old, new) = (FencingToken::new(7), FencingToken::new(9));
/// assert!(old < new);
/// assert_eq!(new.get(), 9);
/// assert_eq!("9".parse(), Ok(new));
/// assert_eq!(u64::from(new), 9);
/// ```
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Makes a token from a number that [`FencingToken::get`] returned, for example one from a
    /// database row.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Returns the number that the resource compares.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for FencingToken {
    fn from(value: u64) -> Self {
        Self(value)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl FromStr for FencingToken {
    type Err = ParseIntError;

    /// Reads the decimal number that `Display` writes.
    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_tokens_are_22_letters_and_distinct_per_bit() {
        let a = OwnerToken::from_random(0);
        let b = OwnerToken::from_random(1);
        let c = OwnerToken::from_random(1 << 127);
        assert_eq!(a.as_str().len(), 22);
        assert!(a != b && b != c && a != c);
        assert_eq!(OwnerToken::parse(c.as_str().as_bytes()), Some(c));
        assert_eq!(OwnerToken::parse(b"short"), None);
        assert_eq!(OwnerToken::parse(&[b' '; 22]), None);
        let reserved = OwnerToken::reserved_for(0x0123_4567_89ab_cdef);
        assert_eq!(reserved.as_str(), "------0123456789abcdef");
        assert!(reserved.is_ownerless() && OwnerToken::KEPT.is_ownerless());
        assert!(OwnerToken::READERS.is_ownerless());
        assert_eq!(OwnerToken::parse(b"------r---------------"), Some(OwnerToken::READERS));
        assert_eq!(OwnerToken::parse(&[b'-'; 22]), Some(OwnerToken::KEPT));
        for bits in [u128::MAX, 1 << 126, 2 << 126] {
            assert!(!OwnerToken::from_random(bits).as_str().starts_with('-'));
        }
    }

    #[test]
    fn debug_does_not_reveal_the_owner_token() {
        let t = OwnerToken::from_random(u128::MAX / 3);
        assert!(!format!("{t:?}").contains(t.as_str()));
    }
}
