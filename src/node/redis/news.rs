//! What a server shows to a client that expects another marker than the one that is there, and what
//! becomes of a batch that was not sent again.

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Value};

use super::decode::EXACT_END;
use super::encode::{self, GroupTerms, Named};
use super::judging::Judging;
use super::seen::{Noted, Seen};
use crate::dial::wire::{Reply, Retry, Wire};
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::node::lineage::{self, Marker, Process, ReplicationId, Shown, Verdict};
use crate::op::{Batch, Facts, Remembered, Terms};
use crate::time::{Drift, Moment};

pub(super) struct News {
    pub(super) micros: u64,
    pub(super) marker: String,
    pub(super) note: String,
    replid: ReplicationId,
    inputs: Option<u64>,
    calls: u64,
    was_reset: bool,
    evicted: u64,
    run: u64,
    /// The slot was never away since the marker was written (cluster 7).
    stayed: bool,
}

impl News {
    pub(super) fn read(answer: &Value) -> Option<Self> {
        let Value::Array(items) = answer else { return None };
        let [Value::BulkString(kind), rest @ ..] = &items[..] else { return None };
        let stayed = &kind[..] == b"stayed";
        if !stayed && &kind[..] != b"news" {
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
            micros: number(0).filter(|micros| *micros < EXACT_END)?,
            marker: text(1)?,
            note: text(2)?,
            replid: ReplicationId::parse(&text(3)?)?,
            inputs: number(4),
            calls: number(5)?,
            was_reset: number(6)? > 0,
            evicted: number(7)?,
            run: text(8)?
                .get(..16)
                .map_or(0, |digits| u64::from_str_radix(digits, 16).unwrap_or(0)),
            stayed,
        })
    }

    fn parsed(&self) -> Option<Marker> {
        Marker::parse(&self.marker, self.micros / 1_000)
    }

    /// `sent`: no later than the question.
    pub(super) fn shown(&self, named: Option<Named>, sent: Moment) -> Shown {
        let Self { run, inputs, calls, was_reset, .. } = *self;
        let marker = self.parsed();
        let since = named.and_then(|named| named.since);
        // By the server's clock, and no earlier.
        let disturbed = named.and_then(|named| named.disturbed).map(|at| {
            let ago = sent.since(at);
            self.micros.saturating_sub(lineage::micros(ago.saturating_sub(Drift::DEFAULT.of(ago))))
        });
        let stayed = marker.is_some_and(|m| since.is_some_and(|since| since <= m.epoch));
        Shown {
            marker,
            is_empty: self.marker.is_empty(),
            note: Noted::read(&self.note).note,
            replid: self.replid,
            process: Process { run, inputs, calls, was_reset },
            evicted: self.evicted,
            stayed: self.stayed && stayed,
            disturbed: marker.is_some_and(|m| disturbed.is_some_and(|at| m.since * 1_000 <= at)),
            micros: self.micros,
        }
    }

    /// What the batch gets that was not sent again: the facts, if it has no ops and nothing was to
    /// be written, else the error.
    pub(super) fn outcome(
        &self,
        judging: &Judging,
        batch: &Batch,
        group_terms: GroupTerms,
        seen: Option<&Arc<Seen>>,
    ) -> Result<Facts, NodeError> {
        let asked = Judging::asked(batch, group_terms);
        match (lineage::judge(&self.shown(group_terms.named, Moment::default()), &asked), seen) {
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
                let detail = "other clients changed the marker palisade:generation each time, or \
                              it took 2 s and more to write one";
                Err(NodeError::not_executed(NodeFault::Contended, detail))
            }
        }
    }
}

pub(super) struct Look {
    pub(super) news: News,
    pub(super) sent: Moment,
    pub(super) received: Moment,
}

impl Retry for Batch {
    fn batch(&self) -> &Batch {
        self
    }
}

/// Expects no marker, so nothing is executed. The script is loaded if the server lacks it.
pub(super) fn ask_for_data(wire: &Wire) -> Option<Reply> {
    let terms = Terms { max_ttl: Duration::ZERO, clock_error: Duration::ZERO };
    let (not_after, remembers) = (None, Remembered::default());
    let nothing = Batch { terms, not_after, remembers, ops: Vec::new() };
    let cmd = encode::batch(&nothing, &[], None, GroupTerms::ALONE, None, true);
    wire.send(cmd.get_packed_command(), 1, Some(Box::new(nothing)))
}

/// The request leaves at once. `None` if the server refused it; then the first batch asks.
pub(super) fn look_at_data(
    wire: &Wire,
    env: &Arc<dyn Env>,
) -> impl Future<Output = Result<Option<Look>, RedisError>> + use<> {
    let (env, sent) = (Arc::clone(env), env.now());
    let reply = ask_for_data(wire);
    async move {
        let Some(reply) = reply else { return Ok(None) };
        let answer = reply.await?.pop().unwrap_or(Value::Nil);
        let received = env.now();
        Ok(News::read(&answer).map(|news| Look { news, sent, received }))
    }
}

fn closed(left: Duration) -> NodeError {
    let detail = format!("closed for another {left:?} at most");
    NodeError::not_executed(NodeFault::HandingOver, detail)
}
