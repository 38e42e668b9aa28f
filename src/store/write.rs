//! A conditional write: what a client assumes of a record or of the keys of a lock, and what is to
//! be written then. `src/node/lua/write.lua` executes it on a server.

use super::lock::Shown;
use crate::op::{Place, Slots};
use crate::token::OwnerToken;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) class: Class,
    /// Those that are sent, the main one first; of several names all of a kind together.
    pub(crate) keys: &'static [Key],
    pub(crate) names: usize,
    /// In order, conditions first. The first one that does not hold ends them: a write is executed
    /// whole or not at all. Without steps the keys are only read.
    pub(crate) steps: Vec<Step>,
    pub(crate) look: Look,
    pub(crate) joins: Option<Join>,
}

impl Write {
    /// Bytes of its values.
    pub(crate) fn len(&self) -> usize {
        let value = |Stamped { before, after, .. }: &Stamped| before.len() + after.len();
        let steps = self.steps.iter().map(|step| match step {
            Step::Begins(text)
            | Step::Is(text)
            | Step::IsOrAbsent(text)
            | Step::Publish(text, _) => text.len(),
            Step::Set(text, _) | Step::Part(_, text) => value(text),
            Step::Slot(SlotWrite { begins, .. }) => begins.len(),
            _ => 0,
        });
        steps.sum()
    }
}

/// The caller waits for a hint, in the last key that is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    pub(crate) place: Waits,
    /// Also if nobody else has the lock.
    pub(crate) always: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    Watcher,
    Writer(Place),
    /// For a permit. It knows this number of slots.
    Permit(Place, u16),
    Reader(Place),
    Fair(Place, Option<u64>),
}

/// A record has the main one alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Main,
    Fence,
    Meta,
    Queue,
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
    /// The steps behind it are about this key of the name with this number, those before the first
    /// one about the first main key.
    On(Key, usize),
    /// Condition: there is no key.
    Absent,
    /// Condition: this is the value.
    Is(Vec<u8>),
    /// Condition: there is no key, or this is the value.
    IsOrAbsent(Vec<u8>),
    /// Condition: there is no key, or a whole number of at most this.
    AtMost(u64),
    /// Condition: the key expires within this time (ms).
    EndsWithin(u64),
    /// Condition: there is a key.
    Present,
    /// Condition: an acquire has noted that the lock is kept until this time (ms) after a handover,
    /// or none has.
    Settled(Option<u64>),
    /// Condition: of a set of members with their ends, this one's is ahead.
    Member(OwnerToken),
    /// Condition: not so.
    NoMember(OwnerToken),
    /// Condition: the value begins with these bytes.
    Begins(Vec<u8>),
    /// Condition: the server's clock is in the range for which the client judged the whole batch.
    Window,
    /// Condition: in this queue no fresh place is ahead. Else somebody else has the lock.
    First(Ahead),
    /// Condition: of a set of readers with so many free places, absent, or reserved for readers. If
    /// there is no free one, somebody else has the lock.
    Shareable(usize),
    /// Condition: the same, but the set may be full, and nobody else is said to have the lock.
    Readable,
    /// Condition: of a set of readers, one at least, with so many free places.
    IsRead(usize),
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
    /// The key is kept for this time (ms).
    LiveFor(u64),
    /// Writes the number, to be kept for at least this time (ms).
    Number(u64, u64),
    /// Takes the lock, with a fence above the last one. Condition: it is free, or reserved for the
    /// caller. Else somebody else has it, or the fence is one that the rule has to judge. Shows a
    /// fence that is not the proposal.
    Take(Take),
    /// The owners are readers for this time (ms); those that are one already are prolonged, or not.
    Read { owners: Vec<OwnerToken>, ms: u64, prolongs: bool },
    /// Behind [`AtMost`](Self::AtMost): keeps the number for at least this time, raises it to
    /// `low`, or writes `first` if there is none. Shows a number that is not `first`.
    Keep { first: u64, low: u64, ms: u64 },
    /// Of the slots of a semaphore, gives the caller one that is free, or reserved for it. Shows
    /// its fence and its number. Condition: there is one. Else somebody else has them, or the fence
    /// is one that the rule has to judge.
    Choose(Choose),
    /// Changes one slot. Condition: it is as assumed.
    Slot(SlotWrite),
    /// Behind these: writes the slots, to be kept for at least this time (ms), or for as long as
    /// the last ones. If told so, wakes a waiter for each slot that became free.
    Slots { life: Option<u64>, hands_on: bool },
    /// Deletes the key.
    Drop,
    /// Wakes the readers that wait in this queue.
    WakeReaders,
    /// Takes the place of the fair waiter for which this value reserves locks out of the queue.
    Leave(OwnerToken),
    /// Metadata, if there are any, are kept for this time (ms).
    KeepMeta(u64),
    /// Notes until when the lock is kept after a handover, until the end of the time in which the
    /// server settles (ms).
    Settle(u64, u64),
    /// Deletes metadata, if there are any.
    DropMeta,
    /// The caller does not get the lock, and what is there now shows why. No step is behind it.
    Refuse,
    /// Deletes the lock if it has this owner, and wakes who waits if it is free then, also if it
    /// was. No step is behind it. Condition: the owner had it.
    Free(OwnerToken),
    /// Writes metadata, to be kept for this time (ms). If there were others, tells who watches the
    /// lock.
    Publish(Vec<u8>, u64),
    /// If the byte at this offset is [`AWAITED`], makes it [`ALONE`] and tells who waits.
    Wake(usize),
}

/// Whose places count, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// For a reader that has waited for this time (µs): those of writers.
    OfReader(u64),
    /// For a fair caller with this handle and ticket: those of others, with tickets at most this
    /// far (µs) ahead of the clock.
    OfFair(u64, Option<u64>, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Take {
    pub(crate) owner: OwnerToken,
    pub(crate) proposal: u64,
    /// In ms.
    pub(crate) ttl: u64,
    /// Of the fence, in ms.
    pub(crate) life: u64,
    pub(crate) reserved: Option<OwnerToken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choose {
    pub(crate) slots: Slots,
    pub(crate) owner: OwnerToken,
    pub(crate) proposal: u64,
    /// In ms.
    pub(crate) ttl: u64,
    pub(crate) reserved: Option<OwnerToken>,
    /// Condition: the slot was never given, and the owner has no other one.
    pub(crate) is_new: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotWrite {
    /// `None` for that of the owner with which it begins.
    pub(crate) slot: Option<u16>,
    /// An owner, and then its end is ahead if the time stays, and its fence at most the new one; or
    /// the whole slot, and then the new owner has no other one.
    pub(crate) begins: Vec<u8>,
    /// `None` if it becomes free.
    pub(crate) owner: Option<OwnerToken>,
    /// Time (ms) for which the owner has it; `None` if its end stays.
    pub(crate) ms: Option<u64>,
    /// `None` if it stays.
    pub(crate) fence: Option<u64>,
}

/// Largest fence of a slot, which has 16 digits.
pub(crate) const FENCE_MAX: u64 = 9_999_999_999_999_999;

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

impl Stamped {
    /// What is written when the server's clock is `now` (ms).
    pub(crate) fn at(&self, now: u64) -> Vec<u8> {
        let end = self.lease.map(|lease| format!("{:013}", now + lease)).unwrap_or_default();
        [&self.before[..], end.as_bytes(), &self.after].concat()
    }
}

impl From<Vec<u8>> for Stamped {
    fn from(before: Vec<u8>) -> Self {
        Self { before, ..Self::default() }
    }
}

/// What the answer shows if nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The first bytes of the main key, or the whole value if it has this byte at this offset and
    /// the answer has room for it.
    Record {
        first: usize,
        whole_if: Option<(usize, u8)>,
    },
    Lock(Extent),
}

/// Of a lock its value, and of readers the one whose grant ends last. And:
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part of its own")]
pub(crate) struct Extent {
    pub(crate) fence: bool,
    /// Of readers this one, if it is one of them.
    pub(crate) reader: Option<OwnerToken>,
    /// All readers, or all permits; and the metadata.
    pub(crate) all: bool,
    /// All permits.
    pub(crate) slots: bool,
    /// The time until which the lock is kept after a handover.
    pub(crate) kept: bool,
    /// The queue, which is the last key.
    pub(crate) queue: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Every step was executed. With the value, if [`Step::Show`] was one of them, or the fence if
    /// it is not the proposal, or the fence and the number of a slot.
    Ran(Option<Vec<u8>>),
    /// Nothing was written. With what is there; `None` if there is no key.
    Not(Option<Vec<u8>>),
    /// Nothing was written. With what is there of each lock.
    Shown(Vec<Shown>),
    /// The lock is not the caller's, and no other plan would change that: somebody else has it, and
    /// the caller waits as it has asked; or it was not its own to give back.
    Refused(Vec<Shown>),
    /// Nothing was written: the key has no string, or a longer one than any of ours.
    Foreign,
    /// Nothing was shown: the answer has no room.
    Deferred,
    /// Nothing was written: the deadline of the batch has passed.
    Late,
    /// Nothing was written: the server's memory is full.
    Full,
}

/// Longest value of ours, in bytes.
pub(crate) const LONGEST: usize = 9 << 20;
