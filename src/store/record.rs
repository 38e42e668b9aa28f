//! The text of an idempotency record on a server. `palisade-ops` reads it, too.
//!
//! | bytes | |
//! |---|---|
//! | 2 | `p1`, the form |
//! | 22 | owner of the last promise, dots without one |
//! | 16 | its ballot, in digits as all numbers |
//! | 29 | its data history, 16 hexadecimal digits, and 13 of its start; hyphens: an earlier one |
//! | 9 | attempts |
//! | 1 | `f` if a fingerprint follows, else `-` |
//! | 32 | fingerprint, or hyphens |
//! | 1 | `-` claimed, `s` steps, `r` result, `n` result that was too large to be kept |
//! | 16 | ballot of the steps or the result |
//! | 8 | length of the steps or the result |
//! | 13 | end of the lease in ms since 1970, 0 if the claim was ended |
//! | 1 | `w` if a caller waits for the end of the claim, else `-` |
//! | | steps or result |
//!
//! The end of the lease and the waiters stand behind what a write compares: an extension under way
//! and a caller that begins to wait do not make a completion wrong.

use std::sync::Arc;

use super::write::{ALONE, AWAITED, LONGEST};
use crate::op::{FingerprintBytes, QuarantineId, StoredRecord, StoredSteps};
use crate::rules::records::Row;
use crate::token::{FencingToken, OwnerToken};

const FORM: &[u8] = b"p1";
const NOBODY: [u8; 22] = [b'.'; 22];
const NO_FINGERPRINT: FingerprintBytes = [b'-'; 32];
const EARLIER: &[u8] = b"-----------------------------";
const FENCE: usize = 24;
const HISTORY: usize = FENCE + 16;
const ATTEMPT: usize = HISTORY + EARLIER.len();
const FINGERPRINT: usize = ATTEMPT + 9;
pub(crate) const STATE: usize = FINGERPRINT + 33;
pub(crate) const TILL: usize = STATE + 25;
pub(crate) const WAITERS: usize = TILL + 13;
pub(crate) const HEAD: usize = WAITERS + 1;

/// Every token is smaller, so that doubles represent it.
const TOKEN_END: u64 = 1 << 53;
const ATTEMPTS_MAX: u32 = 999_999_999;
/// In ns.
pub(super) const MILLIS: u64 = 1_000_000;

pub(crate) const RESULT: u8 = b'r';

/// A record as it is believed to be, or as a server has shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Its `expires` is 0, which stands for any time.
    pub(crate) row: Row,
    /// The steps or the result in the row are the stored ones, and not only as long as these.
    pub(crate) is_whole: bool,
    pub(crate) is_awaited: bool,
}

impl Shown {
    /// `None` if this library has not written the text. It may be cut behind the head.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (head, value) = text.split_at_checked(HEAD)?;
        let number = |from: usize, to: usize| digits(&head[from..to]);
        let token = |from: usize| number(from, from + 16).filter(|token| *token < TOKEN_END);
        if !head.starts_with(FORM) {
            return None;
        }
        let own = &head[FORM.len()..FENCE];
        let own = if own == NOBODY { None } else { Some(OwnerToken::parse(own)?) };
        let fingerprint: FingerprintBytes = head[FINGERPRINT + 1..STATE].try_into().ok()?;
        let fingerprint = match head[FINGERPRINT] {
            b'f' => Some(fingerprint),
            b'-' if fingerprint == NO_FINGERPRINT => None,
            _ => return None,
        };
        let (ballot, len) = (token(STATE + 1)?, usize::try_from(number(STATE + 17, TILL)?).ok()?);
        let is_whole = value.len() >= len;
        let value = || match value.get(..len) {
            Some(value) => Arc::from(value),
            None => Arc::from(vec![0; len]),
        };
        let token_of = |ballot: u64| (ballot > 0).then_some(FencingToken::new(ballot));
        let (mut result, mut steps) = (None, None);
        match head[STATE] {
            b'-' if (ballot, len) == (0, 0) => {}
            b's' if len < LONGEST => {
                steps = Some(StoredSteps { token: token_of(ballot)?, list: value() });
            }
            RESULT if len < LONGEST => {
                result = Some(StoredRecord { token: token_of(ballot)?, value: Some(value()) });
            }
            b'n' if len == 0 => {
                result = Some(StoredRecord { token: token_of(ballot)?, value: None });
            }
            _ => return None,
        }
        let till = number(TILL, WAITERS)?;
        let row = Row {
            own,
            fence: token(FENCE).filter(|fence| *fence > 0)?,
            till: (till > 0).then_some(till * MILLIS),
            attempt: u32::try_from(number(ATTEMPT, FINGERPRINT)?).ok()?,
            fingerprint,
            result,
            steps,
            promised_in: match &head[HISTORY..ATTEMPT] {
                EARLIER => None,
                text => Some(history(text)?),
            },
            expires: 0,
        };
        let is_awaited = match head[WAITERS] {
            AWAITED => true,
            ALONE => false,
            _ => return None,
        };
        Some(Self { row, is_whole, is_awaited })
    }
}

/// What a write compares, up to the end of the lease.
pub(crate) fn head(row: &Row) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD);
    out.extend_from_slice(FORM);
    out.extend_from_slice(row.own.as_ref().map_or(&NOBODY[..], |own| own.as_str().as_bytes()));
    push(&mut out, row.fence, 16, 10);
    match row.promised_in {
        Some(QuarantineId { history, since }) => {
            push(&mut out, history, 16, 16);
            push(&mut out, since, 13, 10);
        }
        None => out.extend_from_slice(EARLIER),
    }
    push(&mut out, row.attempt.min(ATTEMPTS_MAX).into(), 9, 10);
    out.push(if row.fingerprint.is_some() { b'f' } else { b'-' });
    out.extend_from_slice(&row.fingerprint.unwrap_or(NO_FINGERPRINT));
    let (state, ballot) = match (&row.result, &row.steps) {
        (Some(StoredRecord { token, value: Some(_) }), _) => (RESULT, token.get()),
        (Some(StoredRecord { token, value: None }), _) => (b'n', token.get()),
        (None, Some(steps)) => (b's', steps.token.get()),
        (None, None) => (b'-', 0),
    };
    out.push(state);
    push(&mut out, ballot, 16, 10);
    push(&mut out, value(row).len() as u64, 8, 10);
    out
}

/// The head with the end of the lease.
pub(crate) fn through_till(row: &Row) -> Vec<u8> {
    let mut out = head(row);
    push_till(&mut out, row);
    out
}

pub(crate) fn push_till(out: &mut Vec<u8>, row: &Row) {
    push(out, row.till.unwrap_or(0) / MILLIS, 13, 10);
}

/// In digits of this radix. (`format!` takes a fifth of a client's time.)
fn push(out: &mut Vec<u8>, mut number: u64, width: usize, radix: u64) {
    let from = out.len();
    out.resize(from + width, b'0');
    for place in out[from..].iter_mut().rev() {
        *place = b"0123456789abcdef"[(number % radix) as usize];
        number /= radix;
    }
    debug_assert_eq!(number, 0, "wider than its field");
}

pub(crate) fn value(row: &Row) -> &[u8] {
    let result = row.result.as_ref().map(|result| result.value.as_deref().unwrap_or_default());
    result.or(row.steps.as_ref().map(|steps| &*steps.list)).unwrap_or_default()
}

fn digits(text: &[u8]) -> Option<u64> {
    let all = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| all)?.parse().ok()
}

fn history(text: &[u8]) -> Option<QuarantineId> {
    let (name, since) = text.split_at(16);
    let is_hex = name.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b));
    let name = std::str::from_utf8(name).ok().filter(|_| is_hex)?;
    let history = u64::from_str_radix(name, 16).ok()?;
    Some(QuarantineId { history, since: digits(since)? })
}
