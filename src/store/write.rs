//! A conditional write: what a client assumes of one key, and what is to be written then.
//! `src/node/lua/write.lua` executes it on a server.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) class: Class,
    /// In order, conditions first. The first one that does not hold ends them: a write is executed
    /// whole or not at all. Without steps the key is only read.
    pub(crate) steps: Vec<Step>,
    pub(crate) look: Look,
}

impl Write {
    pub(crate) const NOTHING: Self =
        Self { class: Class::Read, steps: Vec::new(), look: Look { first: 1, whole_if: None } };

    /// Bytes of its values.
    pub(crate) fn len(&self) -> usize {
        let value = |Stamped { before, after, .. }: &Stamped| before.len() + after.len();
        let steps = self.steps.iter().map(|step| match step {
            Step::Begins(text) => text.len(),
            Step::Set(text, _) | Step::Part(_, text) => value(text),
            _ => 0,
        });
        steps.sum()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Refused where the server's memory is full.
    Grant,
    Keep,
    /// Executed after the deadline of the batch, too.
    Undo,
    /// Never in the way of a later op on the key.
    Read,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Condition: there is no key.
    Absent,
    /// Condition: the value begins with these bytes.
    Begins(Vec<u8>),
    /// Condition: the server's clock is in this range (µs, both ends included).
    Clock(u64, u64),
    /// Condition: the answer has room for the value, and shows it.
    Show,
    /// Writes the whole value, to be kept for this time (ms), or for as long as the last one.
    Set(Stamped, Option<u64>),
    /// Writes a part of the value, from this offset on.
    Part(usize, Stamped),
    /// The key is kept for at least this time (ms).
    KeepFor(u64),
    /// If the byte at this offset is [`AWAITED`], makes it [`ALONE`] and tells who waits.
    Wake(usize),
}

pub(crate) const AWAITED: u8 = b'w';
pub(crate) const ALONE: u8 = b'-';

/// Bytes to write. With a lease (ms), its end by the server's clock (13 digits, ms) stands between
/// the two parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamped {
    pub(crate) before: Vec<u8>,
    pub(crate) lease: Option<u64>,
    /// Empty without a lease.
    pub(crate) after: Vec<u8>,
}

impl From<Vec<u8>> for Stamped {
    fn from(before: Vec<u8>) -> Self {
        Self { before, ..Self::default() }
    }
}

/// What the answer shows of the key if nothing was written: its first bytes, or the whole value if
/// it has this byte at this offset and the answer has room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) first: usize,
    pub(crate) whole_if: Option<(usize, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Every step was executed. With the value, if [`Step::Show`] was one of them.
    Ran(Option<Vec<u8>>),
    /// Nothing was written. With what is there; `None` if there is no key.
    Not(Option<Vec<u8>>),
    /// Nothing was written: the key has no string, or a longer one than any of ours.
    Foreign,
    /// Nothing was written: the deadline of the batch has passed.
    Late,
    /// Nothing was written: the server's memory is full.
    Full,
}

/// Longest value of ours, in bytes.
pub(crate) const LONGEST: usize = 9 << 20;
