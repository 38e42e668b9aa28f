//! Known bugs. The tests of the simulator turn them on, to check that the simulator finds them.
//!
//! The switches and the code of the bugs exist only in the copy of the repository that
//! `scripts/known-bugs` creates, never in the repository itself. A bug is active only on a thread
//! that has called [`put_back`].

use std::cell::Cell;

/// A bug. Each bug breaks one rule of the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// The token of a lock is the largest counter that a node granted. The other nodes are not
    /// raised to this token (locks 3).
    MaxWithoutRaise,
    /// The fence is deleted with its lock (locks 5).
    FenceDiesWithLock,
    /// A late reply to a renewal makes an expired lock valid again (renewal 1).
    Revival,
    /// A renewal is confirmed although a later term has overtaken the lease's term (renewal 1).
    OvertakenRenewed,
    /// A failed renewal releases the lock (renewal 2).
    FailureReleases,
    /// A node in quarantine restores each lock that a holder asks to extend (quarantine 6).
    RecreateInQuarantine,
    /// Renewals count on a new master while the old master may still grant (quarantine 6).
    TwoMastersVote,
    /// A new master in quarantine accepts a renewal that does not name the quarantine. This happens
    /// if the master's copy of the lock lasts longer than the failover window of the old master
    /// (quarantine 6).
    ExtendByCopy,
    /// A renewal names the quarantine, although its lease ends before the replaced server stops
    /// granting (quarantine 6).
    NamedByWhoLapses,
    /// A promoted server uses the length of the quarantine from its settings, and ignores the
    /// length in its data (quarantine 7).
    QuarantineNotKept,
    /// The floor after a loss is too low for the tokens that a replaced server may still grant
    /// (quarantine 8).
    FloorWithoutWindow,
    /// A request waits in a frozen server. The request takes effect after the server thaws
    /// (overview 3).
    LateRequestsRun,
    /// A server accepts a deadline that was computed from the clock of the server before it
    /// (overview 3).
    DeadlineOfAnotherClock,
    /// A record is deleted with its promised ballot when the retention ends (idempotency 4).
    PromisesExpireEarly,
    /// The extension of a claim does not extend the ttl of the record (idempotency 9).
    ExtensionsKeepNothing,
    /// An operator can take back a running claim, or another claim than the one that the operator
    /// read (idempotency 17).
    ChangesUnfenced,
    /// Only claims contain the fingerprint of the request. Other ops do not (idempotency 8).
    FingerprintOfClaimsOnly,
    /// The check of a request's birth does not allow for clock errors (idempotency 6).
    BirthsWithoutMargin,
    /// The note in the marker is one second later than the newest record (quarantine 13).
    NoteAhead,
    /// A loss begins at the first note of the new history (quarantine 13).
    LossFromItsEnd,
    /// A loss ends when the new history begins, not L later (quarantine 13).
    LossWithoutWindow,
    /// A namespace that accepts a short loss also accepts a loss of unknown length (idempotency 6).
    UnprovedLossAccepted,
    /// After a planned handover, leases end only by the new server's clock (quarantine 11).
    HandoverWithoutSettling,
    /// After a planned handover, claims end only by the new server's clock (quarantine 11).
    ClaimsWithoutSettling,
    /// A node can be closed while it is settling after a planned handover (quarantine 11).
    ClosedWhileSettling,
    /// A promoted server continues without a check that its data contain the closing of the old
    /// server (quarantine 11).
    HandoverUnchecked,
    /// A reply of a node in quarantine counts as a proof that a name has no holder (quarantine 9).
    QuarantinedWitness,
    /// After an attempt, only the nodes that have replied get a release (locks 8).
    LateGrantsStay,
    /// The validity is counted from the reply, not from the request (locks 2).
    ValidityFromAnswer,
    /// The validity does not allow for the drift of clocks (locks 2).
    DriftForgotten,
    /// The data history is identified by the server's process, not by its data (quarantine 1).
    ProcessAsHistory,
    /// The quarantine is one millisecond too short (quarantine 4).
    QuarantineShort,
    /// Tokens have no floor after a loss of data (quarantine 8).
    NoFloor,
    /// A completion is compared only with the token of the record (idempotency 2).
    CompleteByRecord,
    /// Steps are stored without a check of the promised ballot (idempotency 14).
    StepsUnfenced,
    /// A record found on a single node is returned without a repair (idempotency 1).
    RecordOfOneNode,
    /// A grant counts before the replicas have the write (durability 1).
    YesBeforeReplicas,
    /// The nodes keep a lease only for its ttl. They ignore the drain time that the holder declared
    /// (election 8).
    NoLockDelay,
    /// A reservation does not end (locks 11).
    ReservationsStay,
    /// A release of a lock that another holder has deletes nothing, but reserves the lock (locks
    /// 11).
    ReservedOverHolder,
    /// A cancelled takeover releases the lock (locks 13).
    TakeoversRelease,
    /// A server pauses inside a batch and executes other batches meanwhile (overview 2).
    BatchesYield,
    /// Each process has its own records of a job's ticks (cron 1).
    TicksByProcess,
    /// An acquire counts a lock of another program as free (locks 9).
    ForeignOverwritten,
    /// A node grants a writer's lock to readers (readers 1).
    ReaderBesideWriter,
    /// A node grants the lock of readers to a writer (readers 3).
    WriterBesideReader,
    /// On a node, all readers of a lock have one common expiry: that of the last granted or
    /// extended reader (readers 7).
    OneExpiryForReaders,
    /// The token of a reader is the largest one that a node gave. The other nodes are not raised to
    /// this token (readers 11).
    ReaderTokenUnsettled,
    /// The extension of a reader does not check that no other owner has the lock (readers 6).
    SharedExtendOverWriter,
    /// A writer that becomes a reader first releases its lock (readers 12).
    DowngradeReleasesFirst,
    /// A permit is won with slots of a majority, even if these slots differ (semaphore 7).
    AnySlotCounts,
    /// A move does not look if another owner has the slot (semaphore 2).
    MoveSteals,
    /// A node counts the permits that it gave, and does not number them (semaphore 1).
    CountingSemaphore,
    /// A call for several permits keeps those that it has while it waits for the others (semaphore
    /// 10).
    PermitsOneByOne,
    /// A ticket is redeemed under the owner token of the holder that handed the lock over
    /// (hand_over 2).
    ResumeByExtend,
    /// A ticket also takes a lock that its holder does not have any more (hand_over 2).
    ResumeFromNothing,
    /// The token of several locks is written to the fence of the first one only (multi_lock 2).
    ManyTokensDiffer,
    /// Several locks are granted if the first one is free (multi_lock 1).
    PartialMany,
    /// A call for several names takes over names of any owner when it joins them (multi_lock 6).
    JoinTakesOthers,
    /// A call for several names asks for all of them at once until its deadline (multi_lock 6).
    NamesTogetherOnly,
    /// Each node serves fair callers in the order of its own tickets, and ignores the tickets of
    /// the other nodes (fair 2).
    TicketsUnsettled,
    /// A node that grants the lock to a fair caller removes its place (fair 4).
    GrantTakesPlace,
    /// A batch overtakes a batch that was sent earlier (overview 2).
    BatchesOvertake,
}

thread_local! {
    static PUT_BACK: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Turns `bug` on for this thread. `None` turns the current bug off.
pub fn put_back(bug: Option<Bug>) {
    PUT_BACK.set(bug);
}

/// Returns true if `bug` is turned on for this thread.
pub fn on(bug: Bug) -> bool {
    PUT_BACK.get() == Some(bug)
}
