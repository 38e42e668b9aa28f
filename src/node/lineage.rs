//! Whether a server's data are those that its clients used (quarantine 1 to 21): a pure function
//! from what the server shows and what a client remembers. Times are in milliseconds by the
//! server's clock, if a name does not say otherwise.

mod handover;
mod losses;
mod lowered;
mod text;

use std::sync::Arc;
use std::time::Duration;

pub use self::losses::Losses;
pub use self::lowered::Lowering;
pub use self::text::ReplicationId;
pub(crate) use self::text::{NOTE, foreign};
use crate::op::{Began, Facts, Lineage, Loss, QuarantineId, Remembered, next_generation, precedes};
use crate::time::Moment;

/// The marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// 0 if the data have no name, as `vote`.
    pub deployment: u64,
    /// Random id of the vote.
    pub vote: u64,
    /// Random name of the data history.
    pub history: u64,
    /// Number of the history on this vote.
    pub generation: u64,
    /// Beginning of the history; 0 if these data never lost anything.
    pub since: u64,
    /// `master_replid` under which the marker was written.
    pub replid: ReplicationId,
    /// The process that wrote it, with its counters then.
    pub process: Process,
    /// `evicted_keys` when the marker was written; all 9 if keys were evicted and only clients that
    /// allow it know (quarantine 21).
    pub evicted: u64,
    /// Configuration epoch of the Sentinels; 0 without Sentinels.
    pub epoch: u64,
    /// E in µs, the largest that any client has asked for.
    pub clock_error: u64,
    /// Length of a quarantine, the longest that any client has asked for.
    pub quarantine: u64,
    /// No token of this history is below it, in µs.
    pub floor: u64,
    /// Where the data come from.
    pub began: Began,
    /// State around a planned handover.
    pub handover: Option<Handover>,
    /// Time of this write.
    pub written: u64,
    /// What the data may lack.
    pub losses: Losses,
}

/// A server process. One that was no replica since has all that it had (quarantine 19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// First 16 digits of `run_id`.
    pub run: u64,
    /// `total_net_repl_input_bytes`; `None` where the server does not count them.
    pub inputs: Option<u64>,
    /// Calls of `REPLICAOF`, `SLAVEOF` and `FAILOVER`.
    pub calls: u64,
    /// True if the counters were set to zero by `CONFIG RESETSTAT`.
    pub was_reset: bool,
}

pub(crate) const EVICTED: u64 = 999_999_999_999;

/// State around a planned handover, with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// Each server that has this marker refuses every batch.
    Closed(u64),
    /// The data are complete, but leases may end too early by this server's clock.
    Settling(u64),
}

/// What changes with each write that counts, in a key of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// As in the marker.
    pub history: u64,
    /// As in the marker.
    pub generation: u64,
    /// Number of that write in the history.
    pub seq: u64,
    /// The server's clock at that write, in µs.
    pub micros: u64,
}

/// What a server shows.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// `None` if there is none, or none that an honest client can have written.
    pub marker: Option<Marker>,
    /// True if there is no key at all in the marker's place.
    pub is_empty: bool,
    /// `None` if there is none.
    pub note: Option<Note>,
    /// `master_replid`.
    pub replid: ReplicationId,
    /// The process and its counters.
    pub process: Process,
    /// `evicted_keys`.
    pub evicted: u64,
    /// The slot of a cluster was never another server's since the marker was written (cluster 7).
    pub stayed: bool,
    /// Keys of the slot may have been moved away since the history began (cluster 8).
    pub disturbed: bool,
    /// The server's clock in µs.
    pub micros: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub max_ttl: Duration,
    pub clock_error: Duration,
    /// L, from the settings of the servers that could be read.
    pub window: Duration,
    /// L, where settings that could not be read count as the longest.
    pub longest_window: Duration,
    /// A server without a marker is new.
    pub trust_fresh: bool,
    /// A server that evicts may vote.
    pub allow_eviction: bool,
    /// (quarantine 23).
    pub durable: bool,
    /// Epoch in which the Sentinels named this server.
    pub epoch: Option<u64>,
    /// When the slot was last known to be migrating (cluster 8).
    pub disturbed: Option<Moment>,
    pub remembers: Remembered,
    /// Random name for a history that begins now.
    pub name: u64,
}

impl Asked {
    pub(crate) fn about(&self, vote: u64) -> Self {
        Self { remembers: self.remembers.about(vote), ..*self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are the large one, and none is kept")]
pub(crate) enum Verdict {
    /// The batch may be executed under this marker, which must be written first if the server does
    /// not show it.
    Goes(Marker, Change),
    Foreign(Lineage),
    Closed(Duration),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a change of its own")]
pub(crate) struct Change {
    pub begun: bool,
    pub missing: bool,
    pub renamed: bool,
    pub raised: bool,
    /// The history begins because data were lost that a durable server has.
    pub refuted: bool,
}

impl Process {
    pub(crate) fn fresh() -> Self {
        Self { run: 0, inputs: Some(0), calls: 0, was_reset: false }
    }
}

impl Marker {
    /// The marker of a server that has granted nothing yet.
    pub fn born(deployment: u64, vote: u64, history: u64, replid: ReplicationId) -> Self {
        Self {
            deployment,
            vote,
            history,
            generation: 1,
            since: 0,
            replid,
            process: Process::default(),
            evicted: 0,
            epoch: 0,
            clock_error: 0,
            quarantine: 0,
            floor: 0,
            began: Began::Known,
            handover: None,
            written: 0,
            losses: Losses::default(),
        }
    }

    /// End of the quarantine with which the history began; 0 without one.
    pub fn quarantine_end(&self) -> u64 {
        if self.since == 0 { 0 } else { self.since.saturating_add(self.quarantine) }
    }

    /// Returns true if keys were deleted whose loss is not on record: they are not counted here, or
    /// were left to others (quarantine 21).
    pub fn has_evicted(&self, shown: &Shown) -> bool {
        self.evicted == EVICTED || has_evicted(self, shown)
    }

    /// Name of the history and of the quarantine with which it began.
    pub fn id(&self) -> QuarantineId {
        QuarantineId { history: self.history, since: self.since }
    }

    /// Leases from before a handover may last longer than this clock shows; `None` if that is over.
    pub(crate) fn settles(&self, now: u64) -> Option<u64> {
        match self.handover {
            Some(Handover::Settling(till)) if now < till => Some(till),
            _ => None,
        }
    }

    pub(crate) fn lineage(&self, note: Option<Note>) -> Lineage {
        let (seq, note) = self.noted(note);
        Lineage {
            deployment: self.deployment,
            vote: self.vote,
            generation: self.generation,
            history: self.history,
            seq,
            note,
        }
    }

    /// `micros` is the node's clock.
    pub(crate) fn facts(
        &self,
        (note, micros): (Option<Note>, u64),
        change: Change,
        asked: &Asked,
        identity: &Arc<str>,
    ) -> Facts {
        let left = self.quarantine_end().saturating_sub(micros / 1_000);
        Facts {
            node_micros: micros,
            history_id: self.history,
            replication: self.replid.digest(),
            since: self.since,
            lineage: self.lineage(note),
            identity: Arc::clone(identity),
            quarantine: Duration::from_millis(left),
            quarantine_len: Duration::from_millis(self.quarantine),
            quarantine_asked: asked.max_ttl.saturating_add(asked.longest_window),
            clock_error: Duration::from_micros(self.clock_error),
            clock_error_asked: asked.clock_error,
            quarantine_raised: change.raised,
            new_history: change.begun,
            refuted: change.refuted,
            renamed: change.renamed,
            marker_missing: change.missing,
            began: self.began,
            losses: self.losses.list(),
        }
    }

    /// A note of another history is none.
    fn noted(&self, note: Option<Note>) -> (u64, u64) {
        let own = note.filter(|n| (n.history, n.generation) == (self.history, self.generation));
        own.map_or((0, self.written), |note| (note.seq, note.micros / 1_000))
    }
}

pub(crate) fn judge(shown: &Shown, asked: &Asked) -> Verdict {
    let now = shown.micros / 1_000;
    let asked = &asked.about(shown.marker.map_or(0, |m| m.vote));
    let me = &asked.remembers.newest;
    let Some(before) = shown.marker else { return first(shown, asked) };
    if let Some(Handover::Closed(till)) = before.handover
        && now < till
    {
        return Verdict::Closed(Duration::from_millis(till - now));
    }
    if is_foreign(&before, me) {
        return Verdict::Foreign(before.lineage(shown.note));
    }
    let (seq, note) = before.noted(shown.note);
    let mut m = before;
    // A marker without a name is as good as none to a client that knows one (quarantine 15).
    let was_unnamed = m.vote == 0 && me.vote != 0;
    let is_renamed = m.replid != shown.replid;
    let is_moved = is_renamed && !is_continued(m.process, shown.process);
    let stayed = shown.stayed && !is_renamed;
    // In a quarantine, also if it is prolonged now, the clock by which it ends has to be the same.
    let ends = Marker { quarantine: m.quarantine.max(length(asked)), ..before }.quarantine_end();
    let is_trusted = asked.durable && now >= ends.saturating_add(apart(&before, asked));
    let put_back = !was_unnamed && is_put_back(&before, seq, asked);
    let is_older = note + apart(&before, asked) < me.note;
    let is_branch = m.history != me.history && !precedes(m.generation, me.generation);
    let has_evicted = before.has_evicted(shown);
    let beginnings = [
        was_unnamed.then_some(0),
        (is_moved && !is_trusted).then_some(note),
        // Who returns with its own data may have got its last note up to L after it was replaced.
        asked.epoch.filter(|epoch| *epoch > before.epoch && !stayed).map(|_| {
            let is_own = !is_renamed || has_read_nothing(before.process, shown.process);
            note.saturating_sub(if is_own { millis(asked.longest_window) } else { 0 })
        }),
        (has_evicted && !asked.allow_eviction).then_some(0),
        shown.disturbed.then_some(0),
        // Another may have renewed the note after the data were put back, and a branch has notes of
        // its own (quarantine 17).
        put_back.then_some(if is_older && !is_branch { note } else { m.since }),
    ];
    if was_unnamed {
        (m.deployment, m.vote) = (me.deployment, me.vote);
    }
    if was_unnamed || put_back && m.began == Began::Empty || saw_others(&before, asked) {
        m.began = Began::Lost;
    }
    m.handover = m.handover.filter(|_| m.settles(now).is_some());
    if stayed {
        m.epoch = m.epoch.max(asked.epoch.unwrap_or(0));
    }
    let begun = beginnings.into_iter().flatten().min();
    let raised = match begun {
        Some(from) => {
            m = begin(m, from, shown, asked);
            if is_moved {
                // Epochs count anew where a cluster was created from the data of another.
                m.epoch = asked.epoch.unwrap_or(m.epoch);
            }
            false
        }
        None => raise(&mut m, asked),
    };
    if is_moved && begun.is_none() {
        // Leases may end too early by this clock, as after a handover (quarantine 11).
        m = m.taken_over(shown, None);
    }
    m = with_window(m, asked, now);
    // Who allows evictions leaves them to those who do not, whatever process comes next
    // (quarantine 21).
    if has_evicted && asked.allow_eviction {
        m.evicted = EVICTED;
    } else if is_renamed || begun.is_some() {
        m.evicted = shown.evicted;
    }
    if m == before && !is_renamed {
        return Verdict::Goes(before, Change::default());
    }
    if is_renamed || begun.is_some() {
        (m.replid, m.process) = (shown.replid, shown.process);
    }
    m.written = now;
    let raised = raised && before.quarantine > 0;
    let renamed = is_renamed && begun.is_none();
    let refuted = asked.durable && (put_back || was_unnamed);
    Verdict::Goes(m, Change { begun: begun.is_some(), missing: false, renamed, raised, refuted })
}

/// What a client writes that may not vote because the server deletes keys (quarantine 21). It asks
/// for no quarantine, and a server without a marker gets one only from who used its data.
pub(crate) fn left(shown: &Shown, asked: &Asked) -> Option<Marker> {
    let is_new = match shown.marker {
        Some(m) => m.evicted != EVICTED && m.has_evicted(shown),
        None => shown.evicted > 0 && asked.remembers.about(0).newest.generation > 0,
    };
    let mut asked = Asked { allow_eviction: true, ..*asked };
    // Where nobody has asked for anything yet, a quarantine needs a length.
    if shown.marker.is_some_and(|m| m.quarantine > 0) {
        (asked.max_ttl, asked.clock_error) = (Duration::ZERO, Duration::ZERO);
    }
    match judge(shown, &asked) {
        Verdict::Goes(m, _) if is_new => Some(m),
        _ => None,
    }
}

fn first(shown: &Shown, asked: &Asked) -> Verdict {
    let me = &asked.remembers.newest;
    // A name that only settings say is no name of data (quarantine 14).
    let deployment = if me.vote == 0 { 0 } else { me.deployment };
    let mut m = Marker::born(deployment, me.vote, asked.name, shown.replid);
    (m.process, m.evicted, m.written) = (shown.process, shown.evicted, shown.micros / 1_000);
    m.epoch = asked.epoch.unwrap_or(0);
    let knew = me.generation > 0 || asked.remembers.known_since.is_some();
    let is_new = shown.is_empty && asked.trust_fresh && !knew && shown.evicted == 0;
    if is_new {
        raise(&mut m, asked);
    } else {
        // What it deleted may have been data of earlier clients (quarantine 21).
        m.began = if knew || shown.evicted > 0 { Began::Lost } else { Began::Empty };
        m.generation = 0;
        m = with_window(begin(m, 0, shown, asked), asked, m.written);
    }
    let refuted = asked.durable && m.began == Began::Lost;
    Verdict::Goes(m, Change { begun: true, missing: true, refuted, ..Change::default() })
}

fn begin(mut m: Marker, from: u64, shown: &Shown, asked: &Asked) -> Marker {
    let now = shown.micros / 1_000;
    m.clock_error = m.clock_error.max(micros(asked.clock_error));
    // The server that was replaced may have had a longer L than all whose settings were read.
    m.quarantine = m.quarantine.max(millis(asked.max_ttl.saturating_add(asked.longest_window)));
    let remembered = asked.remembers.newest.generation;
    let latest = if precedes(m.generation, remembered) { remembered } else { m.generation };
    m.generation = next_generation(latest);
    (m.history, m.since) = (asked.name, now);
    m.epoch = m.epoch.max(asked.epoch.unwrap_or(0));
    // 2E: this clock may be behind and an earlier token's ahead. The quarantine: a replaced server
    // may grant for a part of it (quarantine 8).
    let lead = m.clock_error.saturating_mul(2).saturating_add(m.quarantine.saturating_mul(1_000));
    m.floor = shown.micros.saturating_add(lead);
    m.handover = None;
    // A clock that was set back by more than 2E shows less than the note.
    m.losses = m.losses.and(Loss { from: from.min(now), began: now, to: now });
    m
}

/// They come down by a person's command only (quarantine 7).
fn raise(m: &mut Marker, asked: &Asked) -> bool {
    let (error, length) = (micros(asked.clock_error), length(asked));
    let raised = error > m.clock_error || length > m.quarantine;
    if raised {
        m.clock_error = m.clock_error.max(error);
        m.quarantine = m.quarantine.max(length);
    }
    raised
}

/// From the settings that could be read.
pub(crate) fn length(asked: &Asked) -> u64 {
    millis(asked.max_ttl.saturating_add(asked.window))
}

/// A server that this one replaced may have written for the longest L (quarantine 13).
fn with_window(mut m: Marker, asked: &Asked, now: u64) -> Marker {
    if now < m.quarantine_end() {
        m.losses = m.losses.with_window(millis(asked.longest_window));
    }
    m
}

/// (quarantine 14).
pub(crate) fn is_foreign(m: &Marker, me: &Lineage) -> bool {
    let differs = |ours: u64, theirs: u64| ours != 0 && theirs != 0 && ours != theirs;
    differs(me.vote, m.vote) || differs(me.deployment, m.deployment)
}

/// Older than what the client has seen, or another branch (quarantine 17).
pub(crate) fn is_put_back(m: &Marker, seq: u64, asked: &Asked) -> bool {
    let me = &asked.remembers.newest;
    if m.history == me.history {
        return precedes(m.generation, me.generation) || seq < me.seq;
    }
    // What follows the client's history begins after its last note, or at most L before it.
    let ends = |last: Loss| last.to.max(last.began.saturating_add(millis(asked.longest_window)));
    let is_beside = |last: Loss| ends(last).saturating_add(apart(m, asked)) < me.note;
    !precedes(me.generation, m.generation) || m.losses.iter().last().is_some_and(is_beside)
}

/// A marker that was put back may be from before E was raised.
fn apart(m: &Marker, asked: &Asked) -> u64 {
    m.clock_error.max(micros(asked.clock_error)).div_ceil(500)
}

/// (quarantine 19).
fn is_continued(then: Process, now: Process) -> bool {
    then.run == now.run
        && now.inputs.is_some()
        && (then.inputs, then.calls) == (now.inputs, now.calls)
        && !now.was_reset
}

fn has_read_nothing(then: Process, now: Process) -> bool {
    now.inputs.is_none_or(|inputs| inputs == 0) || (then.run, then.inputs) == (now.run, now.inputs)
}

/// Another process began to count at 0 (quarantine 21).
fn has_evicted(m: &Marker, shown: &Shown) -> bool {
    let is_same = m.process.run == shown.process.run || m.replid == shown.replid;
    shown.evicted > if is_same { m.evicted } else { 0 }
}

/// (quarantine 10).
pub(crate) fn saw_others(m: &Marker, asked: &Asked) -> bool {
    let began = m.losses.first().map_or(0, |first| first.began);
    let earlier = asked.remembers.known_since.is_some_and(|at| at / 1_000 < began);
    m.began == Began::Empty && earlier
}

pub(crate) fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// Rounded up.
pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
