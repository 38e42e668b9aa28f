//! Judges a server's data for the batches of one connection, and sends a batch again that the
//! script refused because it found another marker than the client expected.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::encode::{self, GroupTerms};
use super::seen::{Noted, Seen};
use crate::dial::wire::Retry;
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::node::lineage::{self, Asked, Marker, Process, ReplicationId, Shown, Verdict};
use crate::op::{Batch, Facts};
use crate::sync::SyncMutex;
use crate::time::{Drift, Moment, NodeClock};

/// How often a batch is sent again because the marker is another one each time.
const TRIES: u8 = 3;

/// What a connection knows of its server's data.
pub(super) struct Judging {
    /// Identity of the server's process, and its first 16 digits.
    pub(super) identity: Arc<str>,
    run: u64,
    /// Address for errors.
    pub(super) at: Arc<str>,
    pub(super) env: Arc<dyn Env>,
    known: SyncMutex<Known>,
}

#[derive(Clone, Default)]
struct Known {
    seen: Option<Arc<Seen>>,
    noted: Noted,
    clock: Option<NodeClock>,
}

impl Judging {
    pub(super) fn new(identity: Arc<str>, at: Arc<str>, env: Arc<dyn Env>) -> Self {
        let run = identity.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        Self { run: run.unwrap_or(0), identity, at, env, known: SyncMutex::default() }
    }

    fn asked(&self, batch: &Batch, group_terms: GroupTerms) -> Asked {
        Asked {
            max_ttl: batch.terms.max_ttl,
            clock_error: batch.terms.clock_error,
            window: group_terms.failover_window,
            longest_window: group_terms.failover_window.max(group_terms.unread_window),
            trust_fresh: group_terms.trust_fresh,
            allow_eviction: group_terms.allow_eviction,
            epoch: group_terms.named.and_then(|named| named.epoch),
            remembers: batch.remembers,
            name: self.env.random() as u64,
        }
    }

    /// Returns the server's clock at `until` at the earliest; a time in the past if the clock or
    /// the moment has passed.
    fn limit(&self, until: Moment) -> u64 {
        let clock = self.known.lock().clock;
        let now = self.env.now();
        clock.filter(|_| now < until).map_or(1, |clock| clock.at(until, Drift::DEFAULT).max(1))
    }

    /// Keeps what an answer says of the note and the clock.
    pub(super) fn heard(&self, seen: &Arc<Seen>, micros: u64, noted: Option<Noted>) -> Noted {
        let mut known = self.known.lock();
        known.clock = Some(NodeClock { micros, read: self.env.now() });
        known.noted = noted.unwrap_or(known.noted);
        // The marker that this batch wrote is there now.
        if known.seen.as_ref().is_some_and(|now| Arc::ptr_eq(now, seen)) && seen.replaces.is_some()
        {
            known.seen = Some(Arc::new(seen.written()));
        }
        known.noted
    }
}

/// A batch on its way: how it was encoded, and how it is sent again.
pub(super) struct Attempt {
    judging: Arc<Judging>,
    batch: Arc<Batch>,
    group_terms: GroupTerms,
    not_after: Option<u64>,
    /// True if the Sentinels' word ends before the batch's own deadline.
    pub(super) is_bounded: bool,
    /// The marker with which it was sent last; shared with the future that waits for the answer.
    sent_with: Arc<SyncMutex<Option<Arc<Seen>>>>,
    tries: u8,
}

impl Attempt {
    pub(super) fn new(
        judging: &Arc<Judging>,
        batch: Arc<Batch>,
        group_terms: GroupTerms,
        sent_with: &Arc<SyncMutex<Option<Arc<Seen>>>>,
    ) -> Self {
        // The deadline may be measured by the clock of another server, from an earlier connection.
        // Then it counts as passed, because the two clocks cannot be compared.
        let deadline = batch.not_after.as_ref().map(|moment| moment.on(&judging.identity));
        let bound =
            group_terms.named.and_then(|named| named.until).filter(|_| !batch.ops.is_empty());
        let bound = bound.map(|until| judging.limit(until));
        let not_after = deadline.into_iter().chain(bound).min();
        Self {
            judging: Arc::clone(judging),
            batch,
            group_terms,
            is_bounded: bound.is_some() && not_after == bound && deadline != bound,
            not_after,
            sent_with: Arc::clone(sent_with),
            tries: TRIES,
        }
    }

    /// Encodes the batch under the marker that the connection expects, if the client need not judge
    /// it again.
    pub(super) fn encode(&self) -> Vec<u8> {
        let known = self.judging.known.lock().clone();
        let asked = self.judging.asked(&self.batch, self.group_terms);
        // A marker that an earlier batch on this connection writes is there when this one arrives.
        let seen = known.seen.filter(|seen| seen.suits(&asked)).map(|seen| match seen.replaces {
            Some(_) => Arc::new(seen.written()),
            None => seen,
        });
        self.encode_under(seen, known.noted)
    }

    fn encode_under(&self, seen: Option<Arc<Seen>>, noted: Noted) -> Vec<u8> {
        // As long as the note was not seen, a client may be waiting.
        let clock = self.judging.known.lock().clock;
        let awaited = clock.is_none_or(|clock| noted.waited > clock.micros / 1_000);
        let to_send = (seen.as_deref(), awaited);
        let cmd = encode::batch(&self.batch, self.not_after, self.group_terms, to_send);
        *self.sent_with.lock() = seen;
        cmd.get_packed_command()
    }

    /// Judges what the server showed.
    fn judge(&self, news: &News) -> (Verdict, Asked) {
        let asked = self.judging.asked(&self.batch, self.group_terms);
        (lineage::judge(&news.shown(self.judging.run), &asked), asked)
    }
}

impl Retry for Attempt {
    fn batch(&self) -> &Batch {
        &self.batch
    }

    fn again(&mut self, answer: &Value) -> Option<Vec<u8>> {
        let news = News::read(answer)?;
        self.tries = self.tries.checked_sub(1)?;
        let sent_with = self.sent_with.lock().clone();
        let known = self.judging.known.lock().clone();
        let asked = self.judging.asked(&self.batch, self.group_terms);
        // An earlier batch of this connection has judged meanwhile.
        let other = known.seen.filter(|seen| {
            sent_with.as_ref().is_none_or(|sent| sent.text() != seen.text())
                && seen.suits(&asked)
                && seen.replaces.is_some()
        });
        if let Some(seen) = other {
            let written = Arc::new(seen.written());
            return Some(self.encode_under(Some(written), Noted::read(&news.note)));
        }
        let (Verdict::Goes(marker, change), asked) = self.judge(&news) else { return None };
        // The script compares texts, and a marker may be written in more ways than ours.
        let changes = marker.to_string() != news.marker;
        let replaces = changes.then(|| news.marker.clone());
        let seen = Arc::new(Seen::new(marker, change, asked, replaces));
        {
            let mut known = self.judging.known.lock();
            known.seen = Some(Arc::clone(&seen));
            known.noted = Noted::read(&news.note);
            known.clock = Some(NodeClock { micros: news.micros, read: self.judging.env.now() });
        }
        if !changes && self.batch.ops.is_empty() {
            *self.sent_with.lock() = Some(seen);
            return None;
        }
        Some(self.encode_under(Some(seen), Noted::read(&news.note)))
    }
}

/// The script's answer to a batch that it did not execute, because another marker is there.
pub(super) struct News {
    micros: u64,
    marker: String,
    note: String,
    replid: ReplicationId,
    inputs: Option<u64>,
    calls: u64,
    was_reset: bool,
    evicted: u64,
}

impl News {
    /// Reads the answer; `None` if the batch was executed, or the answer is another one.
    pub(super) fn read(answer: &Value) -> Option<Self> {
        let Value::Array(items) = answer else { return None };
        let [Value::BulkString(kind), rest @ ..] = &items[..] else { return None };
        if &kind[..] != b"news" {
            return None;
        }
        let text = |at: usize| match rest.get(at)? {
            // The script shows a marker that is no text as `x`; such a note is none.
            Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Value::Int(number) => Some(number.to_string()),
            _ => None,
        };
        let number = |at: usize| text(at)?.parse::<u64>().ok();
        Some(Self {
            micros: number(0)?,
            marker: text(1)?,
            note: text(2)?,
            replid: ReplicationId::parse(&text(3)?)?,
            inputs: number(4),
            calls: number(5)?,
            was_reset: number(6)? > 0,
            evicted: number(7)?,
        })
    }

    fn parsed(&self) -> Option<Marker> {
        Marker::parse(&self.marker, self.micros / 1_000)
    }

    fn shown(&self, run: u64) -> Shown {
        let Self { inputs, calls, was_reset, .. } = *self;
        Shown {
            marker: self.parsed(),
            is_empty: self.marker.is_empty(),
            note: Noted::read(&self.note).note,
            replid: self.replid,
            process: Process { run, inputs, calls, was_reset },
            evicted: self.evicted,
            micros: self.micros,
        }
    }

    /// What the batch gets that was not sent again: the facts, if it has no ops and nothing was to
    /// be written, else the error.
    pub(super) fn outcome(
        &self,
        attempt: &Outcome<'_>,
        seen: Option<&Arc<Seen>>,
    ) -> Result<Facts, NodeError> {
        let Outcome { judging, batch, group_terms } = attempt;
        let asked = judging.asked(batch, *group_terms);
        match (lineage::judge(&self.shown(judging.run), &asked), seen) {
            (Verdict::Foreign(theirs), _) => {
                let detail = lineage::foreign(&asked.remembers.newest, &theirs, &judging.at);
                Err(NodeError::not_executed(NodeFault::ForeignData, detail))
            }
            (Verdict::Closed(left), _) => Err(closed(left)),
            (Verdict::Goes(..), Some(seen)) if batch.ops.is_empty() && seen.replaces.is_none() => {
                let noted = judging.heard(seen, self.micros, Some(Noted::read(&self.note)));
                Ok(seen.facts(self.micros, noted, &judging.identity))
            }
            (Verdict::Goes(..), _) => {
                let detail = "other clients changed the marker palisade:generation each time";
                Err(NodeError::not_executed(NodeFault::Busy, detail))
            }
        }
    }
}

/// A batch whose last answer is to be explained.
pub(super) struct Outcome<'a> {
    pub(super) judging: &'a Judging,
    pub(super) batch: &'a Batch,
    pub(super) group_terms: GroupTerms,
}

fn closed(left: Duration) -> NodeError {
    let detail = format!("closed for another {left:?} at most");
    NodeError::not_executed(NodeFault::HandingOver, detail)
}
