//! Records as operators' programs read and change them.

use std::sync::Arc;

use super::record::{HEAD, MILLIS, STATE, Shown, TILL, WAITERS, through_till};
use super::write::{ALONE, AWAITED};
use crate::op::QuarantineId;
use crate::rules::records::{RecordChange, Unchanged};

/// An idempotency record of which the first [`HEAD`](Self::HEAD) bytes were read.
#[derive(Clone, Debug)]
pub struct RecordRead {
    /// Without its result and its steps.
    shown: Shown,
    begins: [u8; WAITERS],
}

/// A change to a record: what its value has to begin with, and what is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "of this workspace")]
pub struct RecordEdit {
    /// First bytes of the record. If it has others, it was used since it was read.
    pub begins: Vec<u8>,
    /// Bytes to write in the place of the first ones.
    pub text: Vec<u8>,
    /// True if the bytes behind these are removed.
    pub is_whole: bool,
}

impl RecordRead {
    /// Number of bytes to read.
    pub const HEAD: usize = HEAD;

    /// Parses the first bytes of a key's value; `None` if it is no record of this version.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut shown = Shown::parse(text)?;
        shown.row.result.iter_mut().for_each(|result| result.value = None);
        shown.row.steps.iter_mut().for_each(|steps| steps.list = Arc::default());
        Some(Self { shown, begins: text.get(..WAITERS)?.try_into().ok()? })
    }

    /// Returns the number of attempts that count.
    pub fn attempts(&self) -> u32 {
        self.shown.row.attempt
    }

    /// Returns the highest ballot: the number of the last claim.
    pub fn ballot(&self) -> u64 {
        self.shown.row.fence
    }

    /// Returns the end of the last claim's lease in milliseconds since 1970; 0 if it was ended.
    pub fn lease_end(&self) -> u64 {
        self.shown.row.till.unwrap_or(0) / MILLIS
    }

    /// Returns true if there is a result.
    pub fn has_result(&self) -> bool {
        self.shown.row.result.is_some()
    }

    /// Returns true if the highest ballot was promised in this data history.
    pub fn is_of(&self, history: QuarantineId) -> bool {
        self.shown.row.promised_in == Some(history)
    }

    /// Makes a change. `now` is the server's clock in milliseconds, and `longer` the time for which
    /// a lease may go on after its end by this clock.
    ///
    /// # Errors
    /// The reason for which the record stays as it is.
    pub fn edited(
        &self,
        change: RecordChange,
        now: u64,
        longer: u64,
    ) -> Result<RecordEdit, Unchanged> {
        let Self { shown: Shown { row, is_awaited, .. }, begins } = self;
        let new = change.decide(row, now.saturating_mul(MILLIS), longer.saturating_mul(MILLIS))?;
        let mut begins = begins.to_vec();
        if change == RecordChange::Release {
            // A running claim may be extended at any time.
            begins.truncate(TILL);
        }
        let mut text = through_till(&new);
        debug_assert_eq!(text.len(), WAITERS);
        if new.steps.is_some() {
            // The length of the steps, which stay behind this text.
            text[STATE..TILL].copy_from_slice(&self.begins[STATE..TILL]);
        }
        let is_whole = row.result.is_some() || row.steps.is_some() && new.steps.is_none();
        if is_whole {
            text.push(if *is_awaited { AWAITED } else { ALONE });
        }
        Ok(RecordEdit { begins, text, is_whole })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::StoredSteps;
    use crate::rules::records::Row;
    use crate::rules::tests::owner;
    use crate::token::FencingToken;

    #[test]
    fn the_steps_of_a_record_that_is_released_keep_their_length_and_are_not_held_in_memory() {
        let list = Arc::from(vec![b's'; 60_000]);
        let steps = Some(StoredSteps { token: FencingToken::new(5), list });
        let (own, till_ns) = (Some(owner("a")), Some(9 * MILLIS));
        let row = Row { own, fence: 5, till: till_ns, attempt: 1, steps, ..Row::default() };
        let text = [through_till(&row), vec![ALONE]].concat();
        let read = RecordRead::parse(&text).expect("ours");
        assert_eq!(read.shown.row.steps.as_ref().map(|steps| steps.list.len()), Some(0));
        let edit = read.edited(RecordChange::Release, 1, 0).expect("its claim runs");
        let released = Row { own: None, till: None, ..row };
        assert_eq!(edit.text, through_till(&released));
        assert!(text.starts_with(&edit.begins) && !edit.is_whole);
        let read = RecordRead::parse(&[&edit.text[..], &[ALONE]].concat()).expect("ours");
        let edit = read.edited(RecordChange::PurgeUnfinished, 1, 0).expect("no claim runs");
        let purged = Row { attempt: 0, steps: None, ..released };
        assert_eq!(edit.text, [through_till(&purged), vec![ALONE]].concat());
        assert!(edit.is_whole);
    }
}
