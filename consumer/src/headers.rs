//! Names of the message headers that consumers read and write, if the broker has no special fields
//! for these values.

use super::DeadLetter;

/// Key of the request. Every copy of the message has the same key.
pub const KEY: &str = "x-palisade-key";
/// Time at which the producer made the request, in milliseconds since 1970. Every copy of the
/// message has the same time.
pub const CREATED: &str = "x-palisade-created";
/// Number of failures of the handler for this message so far.
pub const FAILURES: &str = "x-palisade-failures";
/// Reason of a dead letter, as a code for programs ([`DeadLetterReason::code`]).
///
/// [`DeadLetterReason::code`]: super::DeadLetterReason::code
pub const REASON: &str = "x-palisade-reason";
/// Reason of a dead letter, as a text for people.
pub const DETAIL: &str = "x-palisade-detail";
/// Name of the original queue, topic or stream of a dead letter.
pub const ORIGIN: &str = "x-palisade-origin";

/// Parts of the original message that a dead letter lacks, as a text for people.
pub const LEFT_OUT: &str = "x-palisade-left-out";

/// In bytes. All headers have to fit into one frame of a broker's protocol.
const DETAIL_MAX: usize = 2_000;

impl DeadLetter {
    /// Returns the headers of a dead letter from the queue, topic or stream `origin`, as names and
    /// values. Each value is one line of text. The headers contain [`KEY`] if the message has a
    /// valid key.
    pub fn headers(&self, origin: &str) -> Vec<(&'static str, String)> {
        let mut detail = String::new();
        for c in self.detail.chars() {
            if detail.len() + c.len_utf8() > DETAIL_MAX {
                break;
            }
            detail.push(if c.is_control() { ' ' } else { c });
        }
        let mut all = vec![
            (REASON, self.reason.code().to_owned()),
            (DETAIL, detail),
            (ORIGIN, origin.to_owned()),
        ];
        all.extend(self.key.clone().map(|key| (KEY, key)));
        all
    }

    /// Returns the headers of a dead letter without the body and the headers of the original
    /// message, for a message that is too large for a copy. `body` is the size of the original body
    /// in bytes.
    pub fn headers_alone(&self, origin: &str, body: usize) -> Vec<(&'static str, String)> {
        let left_out = format!("the body of {body} bytes and the headers: no room for a copy");
        let mut all = self.headers(origin);
        all.push((LEFT_OUT, left_out));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::DeadLetterReason;
    use super::*;

    #[test]
    fn the_headers_of_a_dead_letter_fit_a_frame_and_are_a_line_each() {
        let mut letter = DeadLetter {
            reason: DeadLetterReason::Mismatch,
            detail: format!("one\ntwo {}", "é".repeat(2_000)),
            key: Some("k".into()),
        };
        let all = letter.headers("orders");
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, [REASON, DETAIL, ORIGIN, KEY]);
        assert_eq!((&*all[0].1, &*all[2].1, &*all[3].1), ("mismatch", "orders", "k"));
        let detail = &all[1].1;
        assert!(detail.starts_with("one two é"), "{detail}");
        assert!(detail.len() <= DETAIL_MAX && detail.len() > DETAIL_MAX - 2, "{}", detail.len());
        letter.key = None;
        let alone = letter.headers_alone("orders", 17);
        let names: Vec<_> = alone.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, [REASON, DETAIL, ORIGIN, LEFT_OUT]);
        assert!(alone[3].1.contains("17 bytes"), "{}", alone[3].1);
    }
}
