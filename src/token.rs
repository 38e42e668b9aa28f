//! The two tokens: [`OwnerToken`] identifies the holder of a lock, and [`FencingToken`] orders the
//! holders.
//!
//! They are not interchangeable. An owner token is random and new for every attempt, so that a node
//! can recognise a repeated or late request. The fencing tokens of a lock only grow, and a resource
//! compares them.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A proof of ownership: 128 random bits written as 22 printable ASCII characters.
///
/// Each *attempt* to acquire has a token of its own. So a late release can delete only the lock of
/// its own attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerToken([u8; 22]);

impl OwnerToken {
    /// Value in the owner's place while a node keeps a lock closed after a planned handover. The
    /// lease has ended by the node's clock, but this clock may be wrong, and the holder may still
    /// rely on the lease. The value begins with six hyphens, and no random token does.
    pub const KEPT: Self = Self([b'-'; 22]);

    /// Value in the owner's place while a free lock is reserved for the waiting readers that were
    /// notified. The value begins with six hyphens, and no random token does.
    pub const READERS: Self = Self(*b"------r---------------");

    /// Makes a token from 128 random bits. Each character of the 64-letter alphabet encodes six
    /// bits, the most significant bits first.
    pub fn from_random(bits: u128) -> Self {
        let mut out = [0_u8; 22];
        for (i, letter) in out.iter_mut().enumerate() {
            let shift = 6 * (21 - i);
            *letter = ALPHABET[(bits >> shift) as usize & 63];
        }
        Self(out)
    }

    /// Returns the value in the owner's place while a free lock is reserved for this waiting handle
    /// ([`Place`](crate::op::Place)). The value begins with six hyphens, and no random token does.
    pub fn reserved_for(waiter: u64) -> Self {
        let mut out = [b'-'; 22];
        for (i, digit) in out[6..].iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(waiter >> (60 - 4 * i)) as usize & 15];
        }
        Self(out)
    }

    /// [`KEPT`](Self::KEPT), or the value that reserves a lock for a waiter.
    pub(crate) fn is_ownerless(&self) -> bool {
        self.0.starts_with(b"------")
    }

    /// Parses the text of a token in a node's data; `None` if the text is not a token of palisade.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let bytes: [u8; 22] = text.try_into().ok()?;
        let is_letter = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        bytes.iter().all(is_letter).then_some(Self(bytes))
    }

    /// Returns the 22 characters, in the form that Redis stores.
    pub fn as_str(&self) -> &str {
        // All constructors write only letters of `ALPHABET`, which are ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for OwnerToken {
    /// Prints only the first letters, because a program with the whole token can release the lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerToken({}…)", &self.as_str()[..4])
    }
}

/// A number that orders the holders of a name. The token of each new holder is larger than every
/// earlier token.
///
/// Send the token to the resource with every write. The resource has to refuse a token that is
/// smaller than the largest token of earlier writes. A token is always below 2^53, so that numbers
/// in JSON, Lua and `JavaScript` represent it exactly.
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
    /// Makes a token from a number that [`FencingToken::get`] returned, for example from the value
    /// in a database row.
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

    /// Parses the decimal number that `Display` writes.
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
