//! Codes of results: in the script's answer an op's result begins with one of these.

/// Of a run of releases, one that was executed.
pub(super) const DONE: i64 = 1;
/// Of a run of releases of readers, one that was none.
pub(super) const ABSENT: i64 = -1;
/// Another program wrote a key that the op needs.
pub(super) const WRONG_TYPE: i64 = -5;
/// Not executed, because the batch came after its deadline.
pub(super) const LATE: i64 = -10;
/// Not executed, because the answer is full: ask again.
pub(super) const DEFERRED: i64 = -12;
/// Refused, because the server's memory is full.
pub(super) const FULL: i64 = -16;

/// A conditional write was executed, and the value follows.
pub(super) const RAN: i64 = 1;
/// A condition of a write did not hold, and what is there follows.
pub(super) const NOT_RUN: i64 = 0;
/// Somebody else has the lock, and what is there follows. The caller waits as it asked to.
pub(super) const REFUSED: i64 = 2;

/// Not executed, because an earlier op on one of its keys needs another plan. Once for a whole run.
pub(super) const BEHIND: i64 = -17;

/// For a whole run (`encode::runs`): each op was executed as requested.
pub(super) const AS_ASKED: i64 = -9;
