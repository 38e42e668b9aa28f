//! Known bugs, which the simulator's tests put back in order to check that the simulator finds
//! them.
//!
//! The switches and the buggy code exist only in the copy of the repository that
//! `scripts/known-bugs` makes, never in the repository itself. A bug is active only on a thread
//! that called [`put_back`].

use std::cell::Cell;

/// Rule of the design that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// The token is the largest granted counter; no node is raised to it (locks 3).
    MaxWithoutRaise,
    /// The fence is deleted with its lock (locks 5).
    FenceDiesWithLock,
    /// A late reply to a renewal makes a lapsed lock valid again (renewal 1).
    Revival,
    /// A renewal is confirmed although the term was overtaken (renewal 1).
    OvertakenRenewed,
    /// A failed renewal releases the lock (renewal 2).
    FailureReleases,
    /// A quarantined node restores any lock that a holder asks it to extend (quarantine 6).
    RecreateInQuarantine,
    /// A new master counts renewals while its predecessor may still grant (quarantine 6).
    TwoMastersVote,
    /// A new master in quarantine accepts a renewal that does not name the quarantine, if the
    /// master's copy of the lock lasts longer than the replaced master's failover window
    /// (quarantine 6).
    ExtendByCopy,
    /// A renewal names the quarantine although its lease ends before the replaced server has
    /// stopped granting (quarantine 6).
    NamedByWhoLapses,
    /// A promoted server takes the length of its quarantine from its settings alone, and ignores
    /// its data (quarantine 7).
    QuarantineNotKept,
    /// The floor after a loss leaves out the tokens that a replaced server still grants (quarantine
    /// 8).
    FloorWithoutWindow,
    /// A request that waited in a frozen server takes effect after the server thaws (overview 3).
    LateRequestsRun,
    /// A deadline by one server's clock also counts at the server that replaced it (overview 3).
    DeadlineOfAnotherClock,
    /// A record and its promised ballot are deleted when the retention ends (idempotency 4).
    PromisesExpireEarly,
    /// The extension of a claim does not extend the life of its record (idempotency 9).
    ExtensionsKeepNothing,
    /// An operator can take back a claim that is running, or a claim other than the one that the
    /// operator saw (idempotency 17).
    ChangesUnfenced,
    /// Only claims carry the request's fingerprint; other requests do not (idempotency 8).
    FingerprintOfClaimsOnly,
    /// The check of a request's birth has no margin for the error of clocks (idempotency 6).
    BirthsWithoutMargin,
    /// The noted server time is one second ahead of the newest record (quarantine 13).
    NoteAhead,
    /// A loss begins at the new history's first note (quarantine 13).
    LossFromItsEnd,
    /// A loss ends when the new history begins, instead of L later (quarantine 13).
    LossWithoutWindow,
    /// A loss of unknown length is as acceptable as a short one (idempotency 6).
    UnprovedLossAccepted,
    /// After a planned handover, leases end by the new server's clock alone (quarantine 11).
    HandoverWithoutSettling,
    /// After a planned handover, claims end by the new server's clock alone (quarantine 11).
    ClaimsWithoutSettling,
    /// A node can be closed while it is settling after a planned handover (quarantine 11).
    ClosedWhileSettling,
    /// A promoted server continues without checking that its data contain the closing (quarantine
    /// 11).
    HandoverUnchecked,
    /// A node in quarantine counts as evidence that a name has no holder (quarantine 9).
    QuarantinedWitness,
    /// After an attempt, only the nodes that have answered get a release (locks 8).
    LateGrantsStay,
    /// The validity is counted from the reply instead of the request (locks 2).
    ValidityFromAnswer,
    /// The validity has no margin for drift (locks 2).
    DriftForgotten,
    /// The data history is identified by the server process instead of its data (quarantine 1).
    ProcessAsHistory,
    /// The quarantine is one millisecond too short (quarantine 4).
    QuarantineShort,
    /// Tokens have no floor after a loss of data (quarantine 8).
    NoFloor,
    /// A completion is compared with the record's token only (idempotency 2).
    CompleteByRecord,
    /// Steps are stored without a check of the promised ballot (idempotency 14).
    StepsUnfenced,
    /// A record found on a single node is returned without a repair (idempotency 1).
    RecordOfOneNode,
    /// A yes counts before the replicas have the write (durability 1).
    YesBeforeReplicas,
    /// The nodes keep a lease for its ttl only; the drain time that its holder declared is ignored
    /// (election 8).
    NoLockDelay,
    /// A reservation does not expire (locks 11).
    ReservationsStay,
    /// A release that deletes nothing reserves a lock that has a holder (locks 11).
    ReservedOverHolder,
    /// A takeover that is cancelled releases the lock (locks 13).
    TakeoversRelease,
    /// A server stops inside a batch and executes other batches before it continues (overview 2).
    BatchesYield,
    /// Each process has its own records of a job's ticks (cron 1).
    TicksByProcess,
    /// An acquire treats another program's lock as free (locks 9).
    ForeignOverwritten,
    /// A node grants to readers a lock that a writer has (readers 1).
    ReaderBesideWriter,
    /// A node grants to a writer a lock that readers have (readers 3).
    WriterBesideReader,
    /// All readers of a lock on a node end when the last one that was granted or extended ends
    /// (readers 7).
    OneExpiryForReaders,
    /// A reader's token is the largest that it was given, and no node is raised to it (readers
    /// 11).
    ReaderTokenUnsettled,
    /// A reader's extension does not look if another owner has the lock (readers 6).
    SharedExtendOverWriter,
    /// A writer that becomes a reader releases its lock first (readers 12).
    DowngradeReleasesFirst,
    /// A ticket is redeemed under the owner token of the holder that handed the lock over
    /// (hand_over 2).
    ResumeByExtend,
    /// A ticket also takes a lock that its holder does not have any more (hand_over 2).
    ResumeFromNothing,
    /// The token of several locks is written to the fence of the first one only (multi_lock 2).
    ManyTokensDiffer,
    /// Several locks are granted where the first one is free (multi_lock 1).
    PartialMany,
    /// A batch arrives before a batch that was sent earlier (overview 2).
    BatchesOvertake,
}

thread_local! {
    static PUT_BACK: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Puts `bug` back on this thread; `None` removes the current one.
pub fn put_back(bug: Option<Bug>) {
    PUT_BACK.set(bug);
}

/// Returns true if `bug` is active on this thread.
pub fn on(bug: Bug) -> bool {
    PUT_BACK.get() == Some(bug)
}
