//! The names under which a message carries what consumers need, on brokers that have headers and no
//! place of their own for it.

use super::DeadLetter;

/// The name of the request, the same in every copy of it.
pub const KEY: &str = "x-palisade-key";
/// When the producer made the request, in milliseconds since 1970, the same in every copy of it.
pub const CREATED: &str = "x-palisade-created";
/// How often the handler has failed.
pub const FAILURES: &str = "x-palisade-failures";
/// Why a dead letter is one, for programs ([`DeadLetterReason::code`]).
///
/// [`DeadLetterReason::code`]: super::DeadLetterReason::code
pub const REASON: &str = "x-palisade-reason";
/// Why a dead letter is one, for people.
pub const DETAIL: &str = "x-palisade-detail";
/// Where a dead letter was consumed.
pub const ORIGIN: &str = "x-palisade-origin";

/// Headers have to fit into a broker's frame.
const DETAIL_MAX: usize = 2_000;

impl DeadLetter {
    /// The headers of a dead letter that was consumed at `origin`: a line of text each.
    pub fn headers(&self, origin: &str) -> [(&'static str, String); 3] {
        let line = |c: char| if c.is_control() { ' ' } else { c };
        let detail = self.detail.chars().map(line).take(DETAIL_MAX).collect();
        [(REASON, self.reason.code().to_owned()), (DETAIL, detail), (ORIGIN, origin.to_owned())]
    }
}
