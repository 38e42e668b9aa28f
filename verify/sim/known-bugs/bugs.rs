//! Known bugs that the tests of the simulator put back, to see that it finds them.
//!
//! Only in the copy of the repository that `scripts/known-bugs` makes, and only on a thread that
//! asked for one. The repository's own code has neither the switches nor the code behind them.

use std::cell::Cell;

/// A rule of the design left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// The largest granted counter is the token, without a raise (locks 3).
    MaxWithoutRaise,
    /// The fence is forgotten with its lock (locks 5).
    FenceDiesWithLock,
    /// A late answer to a renewal makes a lapsed hold valid again (renewal 1).
    Revival,
    /// A renewal is confirmed although the term was overtaken (renewal 1).
    OvertakenRenewed,
    /// A failed renewal releases the lock (renewal 2).
    FailureReleases,
    /// A quarantined node puts back whatever a holder asks for (quarantine 6).
    RecreateInQuarantine,
    /// A new master counts renewals while its predecessor may still grant (quarantine 6).
    TwoMastersVote,
    /// A new master in quarantine accepts a renewal that does not name the quarantine, if its own
    /// copy of the lock outlasts the replaced master's window (quarantine 6).
    ExtendByCopy,
    /// A quarantine is named by a holder whose lease ends before a replaced server has stopped
    /// (quarantine 6).
    NamedByWhoLapses,
    /// A promoted server's quarantine is as long as its own settings say, whatever its data say
    /// (quarantine 7).
    QuarantineNotKept,
    /// The floor after a loss leaves out what a replaced server goes on granting (quarantine 8).
    FloorWithoutWindow,
    /// A request that lay in a frozen server takes effect when it thaws (overview 3).
    LateRequestsRun,
    /// A deadline by the clock of one server counts at the server that took its place (overview 3).
    DeadlineOfAnotherClock,
    /// A record, and with it its promise, is forgotten with its retention (idempotency 4).
    PromisesExpireEarly,
    /// An extension of a claim does not prolong its record (idempotency 9).
    ExtensionsKeepNothing,
    /// An operator takes a claim back that runs, or that is another one than was seen
    /// (idempotency 17).
    ChangesUnfenced,
    /// Only claims carry the request's fingerprint (idempotency 8).
    FingerprintOfClaimsOnly,
    /// A birth leaves no room for clocks that are apart (idempotency 6).
    BirthsWithoutMargin,
    /// The note of a server's clock is a second ahead of what was written (quarantine 13).
    NoteAhead,
    /// A loss is proved from the new history's first note (quarantine 13).
    LossFromItsEnd,
    /// A loss ends where the new history begins, not L later (quarantine 13).
    LossWithoutWindow,
    /// A loss of unknown length is as acceptable as a short one (idempotency 6).
    UnprovedLossAccepted,
    /// After a planned handover leases end by the new server's clock alone (quarantine 11).
    HandoverWithoutSettling,
    /// After a planned handover claims end by the new server's clock alone (quarantine 11).
    ClaimsWithoutSettling,
    /// A node is closed while it settles after a planned handover (quarantine 11).
    ClosedWhileSettling,
    /// A promoted server continues without a look at the closing in its data (quarantine 11).
    HandoverUnchecked,
    /// A node in quarantine is a witness that nobody holds a name (quarantine 9).
    QuarantinedWitness,
    /// Only nodes that have answered are released after an attempt (locks 8).
    LateGrantsStay,
    /// The validity is counted from the answer (locks 2).
    ValidityFromAnswer,
    /// The validity leaves nothing for drift (locks 2).
    DriftForgotten,
    /// The history is the process's, not the data's (quarantine 1).
    ProcessAsHistory,
    /// The quarantine is a millisecond short (quarantine 4).
    QuarantineShort,
    /// No floor under the tokens after a loss of data (quarantine 8).
    NoFloor,
    /// A completion is checked against the record's token alone (idempotency 2).
    CompleteByRecord,
    /// Steps are stored whatever ballot was promised (idempotency 14).
    StepsUnfenced,
    /// A record seen on one node is answered without a repair (idempotency 1).
    RecordOfOneNode,
    /// A yes counts before replicas have it (durability 1).
    YesBeforeReplicas,
    /// The nodes keep a lease for its ttl alone, whatever its holder declared (election 8).
    NoLockDelay,
    /// A reservation does not end by itself (locks 11).
    ReservationsStay,
    /// A release that deletes nothing reserves a lock that is held (locks 11).
    ReservedOverHolder,
    /// A takeover that is given up releases the lock (locks 13).
    TakeoversRelease,
    /// A server stops in a batch and executes others before it goes on (overview 2).
    BatchesYield,
    /// Each process has records of its own of a job's ticks (cron 1).
    TicksByProcess,
    /// An acquire treats another program's lock as free (locks 9).
    ForeignOverwritten,
    /// A batch arrives before one that was sent earlier (overview 2).
    BatchesOvertake,
}

thread_local! {
    static PUT_BACK: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Puts a bug back on this thread, or mends it.
pub fn put_back(bug: Option<Bug>) {
    PUT_BACK.set(bug);
}

/// Returns true if this thread has the bug.
pub fn on(bug: Bug) -> bool {
    PUT_BACK.get() == Some(bug)
}
