//! Known bugs of the library. The simulator's own tests turn these bugs on, to check that the
//! simulator finds each of them.
//!
//! The switches and the code of the bugs exist only in the copy of the repository that
//! `scripts/known-bugs` creates, never in the repository itself. A bug is active only on a thread
//! that has called [`put_back`].

use std::cell::Cell;

/// A known bug of the library. Each bug breaks one rule of the design (`docs/design/`), which the
/// parentheses name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// The token of a lock is the largest token that a node granted, but the fences (last tokens)
    /// of the other nodes are not raised to this token (locks 3).
    MaxWithoutRaise,
    /// The fence of a lock name (its last token) is deleted with the lock, so later tokens may be
    /// smaller (locks 5).
    FenceDiesWithLock,
    /// A request of a client with short leases shortens the time for which the fence of a name and
    /// the slots of a semaphore are kept, so leases of clients with longer ones are forgotten
    /// (locks 5).
    SharedKeyShortened,
    /// A late reply to a renewal makes an expired lock valid again (renewal 1).
    Revival,
    /// A renewal is confirmed although a later holder, with a larger token, already has the lock
    /// (renewal 1).
    OvertakenRenewed,
    /// A failed renewal releases the lock (renewal 2).
    FailureReleases,
    /// A node in quarantine (it may have lost leases, so it grants nothing) restores each lock that
    /// a holder asks to extend (quarantine 6).
    RecreateInQuarantine,
    /// Renewals count on a new master while the old master may still grant, so two masters give
    /// leases (quarantine 6).
    TwoMastersVote,
    /// A new master in quarantine accepts a renewal that does not ask it to restore the lease. This
    /// happens if its copy of the lock lasts longer than the old master may still grant (quarantine
    /// 6).
    ExtendByCopy,
    /// A renewal asks a node in quarantine to restore a lease, although this lease ends before the
    /// replaced server stops granting (quarantine 6).
    NamedByWhoLapses,
    /// A promoted server uses the length of the quarantine from its settings, and ignores a longer
    /// one that is stored in its data (quarantine 7).
    QuarantineNotKept,
    /// After a loss of data, the floor (the smallest token of the new data history) is below tokens
    /// that a replaced server may still grant (quarantine 8).
    FloorWithoutWindow,
    /// A request that waited in a frozen server takes effect after the server continues, although
    /// the deadline of the request has passed (overview 3).
    LateRequestsRun,
    /// A server accepts a deadline that was computed from the clock of the server that it replaced
    /// (overview 3).
    DeadlineOfAnotherClock,
    /// A record is deleted when its retention ends, and with it the ballot (token and owner) that
    /// refuses the results of older attempts (idempotency 4).
    PromisesExpireEarly,
    /// The extension of a claim does not extend the ttl of the record (idempotency 9).
    ExtensionsKeepNothing,
    /// An operator's change also applies to a claim that still runs, or to a later claim than the
    /// one that the operator read (idempotency 17).
    ChangesUnfenced,
    /// Only claims send the fingerprint of the request to the nodes. Other operations do not, so a
    /// node that lost the claim does not have the fingerprint (idempotency 8).
    FingerprintOfClaimsOnly,
    /// The check of a request's birth (its creation time) does not allow for clock errors
    /// (idempotency 6).
    BirthsWithoutMargin,
    /// The note (the server's time in its marker, the key with the data history) is one second
    /// later than the newest record (quarantine 13).
    NoteAhead,
    /// The lost writes are assumed to begin when the new data history begins, not at the last
    /// server time that the old history stored (quarantine 13).
    LossFromItsEnd,
    /// The lost writes are assumed to end when the new data history begins. A replaced master may
    /// still grant for its failover window L after that (quarantine 13).
    LossWithoutWindow,
    /// Keys that accept a short loss of data also accept a loss of unknown length (idempotency 6).
    UnprovedLossAccepted,
    /// After a planned handover, a lease ends by the new server's clock only. So it may end too
    /// early, because the clock of the old server may be behind (quarantine 11).
    HandoverWithoutSettling,
    /// After a planned handover, a claim ends by the new server's clock only. So it may end too
    /// early, because the clock of the old server may be behind (quarantine 11).
    ClaimsWithoutSettling,
    /// A node can be closed for another handover while leases of the last planned handover still
    /// run by the old server's clock (quarantine 11).
    ClosedWhileSettling,
    /// A promoted server continues without a check that its data contain the mark by which the
    /// handover closed the old server (quarantine 11).
    HandoverUnchecked,
    /// A reply of a node in quarantine, which may have lost leases, counts as a proof that a name
    /// has no holder (quarantine 9).
    QuarantinedWitness,
    /// After an attempt to acquire, only the nodes that have replied get a release (locks 8).
    LateGrantsStay,
    /// The validity of a lease is counted from the reply, not from the request (locks 2).
    ValidityFromAnswer,
    /// The validity of a lease does not allow for the drift of clocks (locks 2).
    DriftForgotten,
    /// The quarantine (the time without grants after a loss of data) is one millisecond too short
    /// (quarantine 4).
    QuarantineShort,
    /// After a loss of data, tokens have no floor (smallest value), so they may be smaller than
    /// lost tokens (quarantine 8).
    NoFloor,
    /// A result is compared only with the token of the stored result, not with the ballot that a
    /// later claim was promised (idempotency 2).
    CompleteByRecord,
    /// Steps of an older claim are stored although the node has promised the key to a newer claim
    /// (idempotency 14).
    StepsUnfenced,
    /// A record of a key that was found on a single node is returned without a repair, which would
    /// store it on a majority (idempotency 1).
    RecordOfOneNode,
    /// A grant counts before the replicas have the write (durability 1).
    YesBeforeReplicas,
    /// The nodes keep a lease only for its ttl. They ignore the drain time, for which the leader's
    /// work may continue after a loss (election 8).
    NoLockDelay,
    /// A reservation (a released lock that is kept free for the first waiter) does not end (locks
    /// 11).
    ReservationsStay,
    /// A release of a lock that another holder has deletes nothing, but reserves the lock (locks
    /// 11).
    ReservedOverHolder,
    /// A cancelled takeover releases the lock (locks 13).
    TakeoversRelease,
    /// A server pauses inside a batch, and executes other batches during the pause (overview 2).
    BatchesYield,
    /// Each process has separate records of a cron job's ticks, so a tick can run once in each
    /// process (cron 1).
    TicksByProcess,
    /// An acquire counts a lock of another program as free, and overwrites it (locks 9).
    ForeignOverwritten,
    /// A node grants a writer's lock to readers (readers 1).
    ReaderBesideWriter,
    /// A node grants the lock of readers to a writer (readers 3).
    WriterBesideReader,
    /// On a node, all readers of a lock expire together: when the reader that was granted or
    /// extended last expires (readers 7).
    OneExpiryForReaders,
    /// The token of a reader is the largest token that a node gave, but the fences (last tokens) of
    /// the other nodes are not raised to it (readers 11).
    ReaderTokenUnsettled,
    /// The extension of a reader does not check that no other owner has the lock (readers 6).
    SharedExtendOverWriter,
    /// A writer that becomes a reader first releases its lock (readers 12).
    DowngradeReleasesFirst,
    /// A permit is won when a majority of the nodes gave a slot, even if the nodes gave different
    /// slots (semaphore 7).
    AnySlotCounts,
    /// A move (a request for one certain slot) is granted even if another owner has the slot
    /// (semaphore 2).
    MoveSteals,
    /// A node only counts its permits, and gives no permit a slot number (semaphore 1).
    CountingSemaphore,
    /// A call for several permits keeps the permits that it has won while it waits for the others
    /// (semaphore 10).
    PermitsOneByOne,
    /// A hand-over ticket is redeemed under the owner token of the holder that made the ticket, so
    /// the nodes cannot distinguish the old holder from the new one (hand_over 2).
    ResumeByExtend,
    /// A hand-over ticket also takes a lock that the holder who made the ticket no longer has
    /// (hand_over 2).
    ResumeFromNothing,
    /// The token of several locks that were acquired together is written only to the fence (last
    /// token) of the first lock (multi_lock 2).
    ManyTokensDiffer,
    /// Several locks are granted together as soon as the first lock is free (multi_lock 1).
    PartialMany,
    /// A call for several names that collects them one after the other takes names from any owner
    /// (multi_lock 6).
    JoinTakesOthers,
    /// A call for several names asks for all of them together until its deadline, and never
    /// collects them one after the other (multi_lock 6).
    NamesTogetherOnly,
    /// Each node serves fair callers in the order of its own tickets, and ignores the tickets of
    /// the other nodes (fair 2).
    TicketsUnsettled,
    /// A node that grants the lock to a fair caller removes this caller from its queue at once,
    /// although the other nodes may refuse the caller (fair 4).
    GrantTakesPlace,
    /// A batch overtakes a batch that was sent earlier (overview 2).
    BatchesOvertake,
    /// A quarantine begins again and again, so it never ends (quarantine 4).
    BeginsAgain,
    /// The Sentinels' epoch decides nothing, so a replaced master that is promoted again goes on
    /// with its own data (quarantine 16).
    EpochIgnored,
    /// A client that was told of the master a long time ago still uses it, though this master was
    /// replaced and promoted again since (sentinel 10).
    EpochOfAnyAge,
    /// Two Sentinels that name the same server are a majority, though one of them has not heard of
    /// the promotions since, and the epoch that both have reached counts (sentinel 1).
    AddressAlone,
    /// A client that was told of the master a long time ago still uses it if the data were written
    /// within the last second, though this master was replaced and promoted again since (sentinel
    /// 10).
    YoungNoteInstead,
    /// A client takes the data of another vote for its own (quarantine 14).
    ForeignTaken,
    /// A client goes on with data without a name, and gives them its own (quarantine 15).
    UnnamedGoesOn,
    /// A client that remembers no name gives one to data that have none, so those who remember
    /// another are refused (quarantine 15).
    NamedAtOnce,
    /// A client that remembers a name refuses data that have none (quarantine 15).
    UnnamedRefused,
    /// A client that remembers nothing counts each server that it finds, whatever the deployment of
    /// the other nodes is (quarantine 22).
    FirstComersCount,
    /// A majority of the views that answer names a slot's owner, and not a majority of the masters
    /// that were followed before as well (cluster 2).
    MajorityOfViews,
    /// The word on a slot's owner ends with the client's own failover window, which may be longer
    /// than that of others (cluster 4).
    WordByOwnWindow,
    /// What a client remembers of the data is not looked at (quarantine 17).
    MemoryIgnored,
    /// Of what a client remembers, the number of the history is not looked at (quarantine 17).
    GenerationForgotten,
    /// Another history of the number that the client remembers counts as the newest data
    /// (quarantine 17).
    EqualGenerationTaken,
    /// Of what a client remembers, the number of the last write is not looked at (quarantine 17).
    SeqForgotten,
    /// The number of the last write counts the renewed notes only, and not each batch that grants
    /// (quarantine 18).
    SeqOfNotes,
    /// Data that are put back are noticed only if they are a second older, by the time of the last
    /// write and not by its number (quarantine 18).
    SeqByNote,
    /// What is lost when data are put back is reckoned from their note, though another client has
    /// renewed it since (quarantine 17).
    LossFromNote,
    /// Data that a server renames begin a new history, though nothing is lost (quarantine 19).
    RenameBegins,
    /// A renamed history goes on in another process (quarantine 19).
    ProofWithoutRun,
    /// A renamed history goes on though the server has followed another one (quarantine 19).
    ProofWithoutCounters,
    /// A renamed history goes on though the counters that prove it were set to zero (quarantine
    /// 19).
    ResetstatUnseen,
    /// A renamed history goes on though the counters that prove it were set to zero, if they were
    /// so before, too (quarantine 19).
    ResetstatUnchanged,
    /// A renamed history goes on if the server has no second id. That is gone with the next rename,
    /// also if the server has followed another one (quarantine 19).
    SecondIdInstead,
    /// Keys that a server deleted because its memory was full are not looked for, as long as it has
    /// its marker (quarantine 21).
    EvictionsUnseen,
    /// A planned handover leaves the old epoch in the marker, so a quarantine follows
    /// (quarantine 20).
    HandoverForgetsEpoch,
    /// A planned handover closes a master that was promoted again and has not begun a new history
    /// (quarantine 20).
    HandoverOfAnyEpoch,
    /// A free lock that was kept for its holder after one planned handover is not kept after the
    /// next (quarantine 11).
    KeptOnce,
    /// After a planned handover, a lock is kept for its holders from the first refusal on, which
    /// may be before the last of them has left (quarantine 11).
    KeptFromRefusal,
    /// For a server that was declared durable, another vote's data are taken for its own
    /// (quarantine 23).
    DeclaredForeign,
    /// A server that was declared durable goes on in another process, and leases end by its clock
    /// only (quarantine 23).
    DeclaredWithoutSettling,
    /// A server that was declared durable goes on in another process in a quarantine, which ends by
    /// that one's clock (quarantine 23).
    DeclaredInQuarantine,
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
