//! Known bugs that the tests of the simulator put back, to see that it finds them.
//!
//! Only with the feature `sim-bugs`, which nothing but `sim/` turns on, and only on a thread that
//! asked for one. A normal build has neither the switch nor the code behind it.

use std::cell::Cell;

/// A rule of the design left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// The largest granted counter is the token, without a raise (§5.2).
    MaxWithoutRaise,
    /// The fence is forgotten with its lock (§5.2).
    FenceDiesWithLock,
    /// A late answer to a renewal makes a lapsed hold valid again (§5.3).
    Revival,
    /// A renewal is confirmed although the term was overtaken (§5.3).
    OvertakenRenewed,
    /// A failed renewal releases the lock (§5.3).
    FailureReleases,
    /// A quarantined node puts back whatever a holder asks for (§5.3).
    RecreateInQuarantine,
    /// A new master counts renewals while its predecessor may still grant (§5.3).
    TwoMastersVote,
    /// A new master counts a renewal by how long its own copy of the lock lasts.
    ExtendByCopy,
    /// A quarantine is named by a holder whose lease ends before a replaced server has stopped.
    NamedByWhoLapses,
    /// A token is raised, and a promise renewed, during a quarantine.
    RaiseInQuarantine,
    /// A promoted server's quarantine is as long as its own settings say, whatever its data say.
    QuarantineNotKept,
    /// The floor after a loss leaves out what a replaced server goes on granting.
    FloorWithoutWindow,
    /// A request that lay in a frozen server takes effect when it thaws.
    LateRequestsRun,
    /// A record, and with it its promise, is forgotten with its retention.
    PromisesExpireEarly,
    /// Only claims carry the request's fingerprint.
    FingerprintOfClaimsOnly,
    /// A new history says "never seen" of a key that is younger than its own beginning.
    BirthsWithoutMargin,
    /// After a planned handover leases end by the new server's clock alone.
    HandoverWithoutSettling,
    /// Only nodes that have answered are released after an attempt (§5.1, §5.4).
    LateGrantsStay,
    /// The validity is counted from the answer (§6).
    ValidityFromAnswer,
    /// The validity leaves nothing for drift (§6).
    DriftForgotten,
    /// The generation is the process's, not the data's (§5.5).
    ProcessAsGeneration,
    /// The quarantine is a millisecond short (§5.5).
    QuarantineShort,
    /// No floor under the tokens after a loss of data (§5.5).
    NoFloor,
    /// A completion is checked against the record's token alone (§5.7).
    CompleteByRecord,
    /// A record seen on one node is answered without a repair (§5.7).
    RecordOfOneNode,
    /// A yes counts before replicas have it (§5.6).
    YesBeforeReplicas,
}

thread_local! {
    static PUT_BACK: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Puts a bug back on this thread, or mends it.
pub fn put_back(bug: Option<Bug>) {
    PUT_BACK.set(bug);
}

/// Whether this thread has the bug.
pub(crate) fn on(bug: Bug) -> bool {
    PUT_BACK.get() == Some(bug)
}
