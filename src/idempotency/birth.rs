//! Creation times of requests.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::ConfigError;
use crate::time::utc;

/// Returns the creation time in a version 7 UUID; `None` if the text is no version 7 UUID. The time
/// is by the clock of the machine that made the UUID. Hyphens are optional, and letters may be
/// small or capital.
///
/// If a UUID is a part of your key, pass the result to
/// [`Call::created_at`](super::Call::created_at). If the UUID is the whole key, use
/// [`Call::created_in_uuid_v7`](super::Call::created_in_uuid_v7).
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// let key = "alice:01890a5d-ac96-774b-bcce-b302099a8057";
/// let made = key.split(':').next_back().and_then(palisade::idempotency::created_in_uuid_v7);
/// assert_eq!(made, Some(UNIX_EPOCH + Duration::from_millis(1_688_096_058_518)));
/// ```
pub fn created_in_uuid_v7(uuid: &str) -> Option<SystemTime> {
    let bytes = uuid.as_bytes();
    let has_hyphens = bytes.len() == 36 && [8, 13, 18, 23].iter().all(|at| bytes[*at] == b'-');
    let digits = if has_hyphens { uuid.replace('-', "") } else { uuid.to_owned() };
    if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let number = u128::from_str_radix(&digits, 16).ok()?;
    // Digits count from 0: 12 is the version, the upper two bits of 16 are the variant of RFC 9562,
    // binary 10.
    if number >> 76 & 0b1111 != 7 || number >> 62 & 0b11 != 0b10 {
        return None;
    }
    Some(after_1970((number >> 80) as u64))
}

/// Returns the creation time in a ULID; `None` if the text is no ULID. The time is by the clock of
/// the machine that made the ULID. Letters may be small or capital.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// let made = palisade::idempotency::created_in_ulid("01ARYZ6S41TSV4RRFFQ69G5FAV");
/// assert_eq!(made, Some(UNIX_EPOCH + Duration::from_millis(1_469_918_176_385)));
/// ```
pub fn created_in_ulid(ulid: &str) -> Option<SystemTime> {
    // Crockford's base 32 alphabet, which lacks I, L, O and U.
    const DIGITS: &[u8] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let digit = |b: u8| DIGITS.iter().position(|d| *d == b.to_ascii_uppercase());
    let digits: Option<Vec<usize>> = ulid.bytes().map(digit).collect();
    let digits = digits.filter(|d| d.len() == 26 && d[0] < 8)?;
    Some(after_1970(digits[..10].iter().fold(0, |ms, digit| ms << 5 | *digit as u64)))
}

fn after_1970(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

/// A time before 1970 becomes zero.
pub(super) fn millis_since_1970(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A request from further ahead could look newer than a loss of data, so nodes would treat it as
/// never run.
pub(super) fn check_past(
    field: &'static str,
    at: u64,
    wall_micros: u64,
    clock_error: Duration,
) -> Result<(), ConfigError> {
    let (now, lead) = (wall_micros / 1_000, 2 * clock_error);
    let lead_ms = u64::try_from(lead.as_millis()).unwrap_or(u64::MAX);
    if at <= now.saturating_add(lead_ms) {
        return Ok(());
    }
    let rule = format!(
        "at most twice clock_error ({lead:?}) ahead of this machine's clock, which shows {}; set \
         the clock that is wrong, or give the time at which the request was received",
        utc(now)
    );
    Err(ConfigError::new(field, utc(at), rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(at: Option<SystemTime>) -> Option<u64> {
        at.map(millis_since_1970)
    }

    #[test]
    fn a_uuid_of_version_7_says_when_it_was_made() {
        // The example of RFC 9562, A.6.
        let rfc = "017F22E2-79B0-7CC3-98C4-DC0C0C07398F";
        assert_eq!(ms(created_in_uuid_v7(rfc)), Some(0x017F_22E2_79B0));
        assert_eq!(ms(created_in_uuid_v7(&rfc.to_lowercase())), Some(1_645_557_742_000));
        assert_eq!(ms(created_in_uuid_v7(&rfc.replace('-', ""))), Some(1_645_557_742_000));
        for bad in [
            "",
            "order-7",
            "C232AB00-9414-4C53-9EC3-DECEC5FF3E57", // version 4
            "017F22E2-79B0-7CC3-18C4-DC0C0C07398F", // another variant
            "017F22E279B0-7CC3-98C4-DC0C0C07398F-", // hyphens elsewhere
            "017F22E2079B0-7CC3-98C4-DC0C0C07398F", // a digit in the place of a hyphen
            "017F22E2-79B0-7CC3-98C4-DC0C0C07398",  // short
            "017F22E2-79B0-7CC3-98C4-DC0C0C07398F0", // long
            "017F22E2-79B0-7CC3-98C4-DC0C0C07398G",
            "é17F22E2-79B0-7CC3-98C4-DC0C0C07398",
        ] {
            assert_eq!(created_in_uuid_v7(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_ulid_says_when_it_was_made() {
        assert_eq!(ms(created_in_ulid("01arz3ndektsv4rrffq69g5fav")), Some(1_469_922_850_259));
        assert_eq!(ms(created_in_ulid("7ZZZZZZZZZZZZZZZZZZZZZZZZZ")), Some((1 << 48) - 1));
        for bad in [
            "",
            "8ZZZZZZZZZZZZZZZZZZZZZZZZZ", // more than 48 bits
            "01ARZ3NDEKTSV4RRFFQ69G5FA",  // short
            "01ARZ3NDEKTSV4RRFFQ69G5FAVX",
            "01ARZ3NDEKTSV4RRFFQ69G5FAI",
            "01ARZ3NDEKTSV4RRFFQ69G5FA-",
        ] {
            assert_eq!(created_in_ulid(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_future_begins_beyond_what_two_clocks_can_differ() {
        let check =
            |at| check_past("created_at", at, 1_700_000_000_000_000, Duration::from_secs(2));
        check(0).unwrap();
        check(1_700_000_004_000).unwrap();
        let error = check(1_700_000_004_001).unwrap_err().to_string();
        let begins =
            "`created_at` is 2023-11-14T22:13:24.001Z: at most twice clock_error (4s) ahead";
        assert!(error.starts_with(begins), "{error}");
        assert!(error.contains("which shows 2023-11-14T22:13:20.000Z"), "{error}");
    }
}
