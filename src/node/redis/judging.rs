//! Judges a server's data for the batches of one connection: by what the server showed at the login
//! ([`Look`]), and by its answer to a batch that the script refused because it found another marker
//! than the client expected. Such a batch is sent again.

use std::sync::Arc;

use redis::Value;

use super::decode::{self, Decoded};
use super::encode::{self, GroupTerms};
use super::news::{Look, News};
use super::seen::{Noted, Seen};
use crate::dial::wire::Retry;
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::node::lineage::{self, Asked, Change, Marker, Verdict};
use crate::op::{Batch, Op, TimedFacts};
use crate::store::beliefs::Beliefs;
use crate::store::planned::Planned;
use crate::sync::SyncMutex;
use crate::time::{Drift, Moment, NodeClock};

/// How often a batch is sent again because the marker is another one each time.
const TRIES: u8 = 3;
/// How often the rest of a batch is sent again because its records or locks are not as they were
/// believed to be. One is enough if nobody else changes them meanwhile.
const PLANS: u8 = 100;

pub(super) struct Judging {
    /// Identity of the server's process, and its first 16 digits.
    pub(super) identity: Arc<str>,
    pub(super) at: Arc<str>,
    pub(super) env: Arc<dyn Env>,
    known: SyncMutex<Known>,
    /// Of all slots on the connection together.
    pub(super) beliefs: Arc<SyncMutex<Beliefs>>,
}

#[derive(Clone, Default)]
struct Known {
    seen: Option<Arc<Seen>>,
    noted: Noted,
    clock: Option<NodeClock>,
}

impl Judging {
    pub(super) fn new(identity: Arc<str>, at: Arc<str>, env: Arc<dyn Env>) -> Self {
        let (known, beliefs) = (SyncMutex::default(), Arc::default());
        Self { identity, at, env, known, beliefs }
    }

    pub(super) fn asked(batch: &Batch, group_terms: GroupTerms) -> Asked {
        Asked {
            max_ttl: batch.terms.max_ttl,
            clock_error: batch.terms.clock_error,
            window: group_terms.failover_window,
            longest_window: group_terms.failover_window.max(group_terms.unread_window),
            trust_fresh: group_terms.trust_fresh,
            allow_eviction: group_terms.allow_eviction,
            durable: group_terms.durable,
            epoch: group_terms.named.and_then(|named| named.epoch),
            disturbed: group_terms.named.and_then(|named| named.disturbed),
            remembers: batch.remembers,
            name: 0,
        }
    }

    /// At the earliest; a time in the past if the clock or the moment has passed.
    fn limit(&self, until: Moment) -> u64 {
        let clock = self.known.lock().clock;
        let now = self.env.now();
        clock.filter(|_| now < until).map_or(1, |clock| clock.at(until, Drift::DEFAULT).max(1))
    }

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

pub(super) struct Attempt {
    pub(super) judging: Arc<Judging>,
    pub(super) batch: Arc<Batch>,
    pub(super) group_terms: GroupTerms,
    /// In µs by the server's clock.
    deadline: Option<u64>,
    /// Before it is sent for the first time.
    made: Moment,
    pub(super) sent_with: Arc<SyncMutex<SentWith>>,
    tries: u8,
    plans: u8,
    /// Places of the ops of `batch` in the first one, of which they are the rest.
    places: Option<Vec<usize>>,
    /// Executed by the last answer, if something is sent again.
    settled: Option<Vec<Op>>,
}

#[derive(Default)]
pub(super) struct SentWith {
    pub(super) seen: Option<Arc<Seen>>,
    /// The Sentinels' word ends before the batch's own deadline.
    pub(super) is_bounded: bool,
    pub(super) plans: Vec<Option<Planned>>,
    /// Answers that came already, to the first batch.
    pub(super) came: Option<Result<Decoded, NodeError>>,
}

impl Attempt {
    pub(super) fn new(judging: &Arc<Judging>, batch: Arc<Batch>, group_terms: GroupTerms) -> Self {
        // By the clock of another server, from an earlier connection, it counts as passed: the two
        // cannot be compared.
        let deadline = batch.not_after.as_ref().map(|moment| moment.on(&judging.identity));
        let made = judging.env.now();
        let (judging, sent_with) = (Arc::clone(judging), Arc::default());
        let (tries, plans) = (TRIES, PLANS);
        let (places, settled) = (None, None);
        Self {
            judging,
            batch,
            group_terms,
            deadline,
            made,
            sent_with,
            tries,
            plans,
            places,
            settled,
        }
    }

    /// By what the server showed at the login. Returns the bytes that write the marker, or the
    /// facts if this one, without ops, has nothing to write.
    pub(super) fn begin(&self, look: &Look) -> Result<Begun, NodeError> {
        let seen = self.judged(&look.news, look.received);
        if let Some(seen) = seen.as_ref().filter(|seen| seen.replaces.is_some()) {
            let noted = Noted::read(&look.news.note);
            return Ok(Begun::Writes(self.encode_under(Some(Arc::clone(seen)), noted)));
        }
        let Self { judging, batch, group_terms, .. } = self;
        let facts = look.news.outcome(judging, batch, *group_terms, seen.as_ref())?;
        Ok(Begun::Knows(TimedFacts { facts, sent: look.sent, received: look.received }))
    }

    /// The bytes that put on record what the server deleted, if that is to be done by a client
    /// that may not vote. They are sent once: meanwhile the marker itself may have been deleted.
    pub(super) fn leave_evictions(&mut self, look: &Look) -> Option<Vec<u8>> {
        self.tries = 0;
        let name = self.judging.env.random() as u64;
        let asked = Asked { name, ..Judging::asked(&self.batch, self.group_terms) };
        let marker = lineage::left(&look.news.shown(None, self.made), &asked)?;
        let replaces = Some(look.news.marker.clone());
        let seen = Seen::new(&marker, Change::default(), asked, replaces);
        Some(self.encode_under(Some(Arc::new(seen)), Noted::read(&look.news.note)))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let known = self.judging.known.lock().clone();
        let asked = Judging::asked(&self.batch, self.group_terms);
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
        // The first answer of a connection shows the clock by which the Sentinels' word ends.
        let until = self.group_terms.named.and_then(|named| named.until);
        let bound = until.map(|until| self.judging.limit(until));
        let not_after = self.deadline.into_iter().chain(bound).min();
        let is_bounded = bound.is_some() && not_after == bound && self.deadline != bound;
        let plans = seen.as_deref().map(|seen| self.plan(seen, noted)).unwrap_or_default();
        let cmd = encode::batch(
            &self.batch,
            &plans,
            not_after,
            self.group_terms,
            seen.as_deref(),
            awaited,
        );
        let mut sent_with = self.sent_with.lock();
        (sent_with.seen, sent_with.is_bounded, sent_with.plans) = (seen, is_bounded, plans);
        cmd.get_packed_command()
    }

    fn plan(&self, seen: &Seen, noted: Noted) -> Vec<Option<Planned>> {
        let Self { judging, batch, .. } = self;
        if !judging.beliefs.lock().needs_plans(&batch.ops) {
            return Vec::new();
        }
        let clock = judging.known.lock().clock;
        let micros = clock.map_or(0, |clock| clock.at(judging.env.now(), Drift::DEFAULT));
        let facts = seen.facts(micros, noted, &judging.identity);
        let h = seen.header(facts, batch.terms.max_ttl);
        let mut beliefs = judging.beliefs.lock();
        beliefs.plan_all(&h, &batch.ops)
    }

    /// Keeps an answer that settles only a part of the batch, and plans the rest again.
    fn plan_rest(&mut self, answer: &mut Value) -> Option<Vec<u8>> {
        let (seen, plans) = {
            let mut sent_with = self.sent_with.lock();
            let is_list = matches!(answer, Value::Array(_));
            if self.places.is_none() && !is_list {
                return None;
            }
            (sent_with.seen.clone()?, std::mem::take(&mut sent_with.plans))
        };
        let answer = match answer {
            Value::ServerError(_) => return None,
            answer => std::mem::replace(answer, Value::Nil),
        };
        let decoded = decode::replies(answer, &self.batch, &plans, &self.judging, &seen);
        let mut sent_with = self.sent_with.lock();
        let came = match (sent_with.came.take(), decoded) {
            (Some(Ok(mut came)), Ok(rest)) => {
                came.take_rest(rest, self.places.iter().flatten().copied());
                Ok(came)
            }
            (Some(Ok(came)), Err(e)) => Ok(came.or_fail(&e)),
            (_, decoded) => decoded,
        };
        let came = sent_with.came.insert(came).as_ref().ok()?;
        let is_open = |at: &usize| came.items[*at].is_none();
        let places: Vec<usize> = (0..came.items.len()).filter(is_open).collect();
        let left = self.plans.checked_sub(1)?;
        if places.is_empty() {
            return None;
        }
        drop(sent_with);
        let before = self.places.take().unwrap_or_else(|| (0..self.batch.ops.len()).collect());
        let ops = self.batch.ops.iter().cloned().zip(before);
        let (ops, settled): (Vec<_>, Vec<_>) = ops.partition(|(_, at)| places.contains(at));
        let op = |(op, _)| op;
        self.settled = Some(settled.into_iter().map(op).collect());
        let ops = ops.into_iter().map(op).collect();
        self.batch = Arc::new(Batch { ops, ..Batch::clone(&self.batch) });
        (self.places, self.plans) = (Some(places), left);
        Some(self.encode())
    }

    fn judged(&self, news: &News, read: Moment) -> Option<Arc<Seen>> {
        let name = self.judging.env.random() as u64;
        let asked = Asked { name, ..Judging::asked(&self.batch, self.group_terms) };
        let verdict = lineage::judge(&news.shown(self.group_terms.named, self.made), &asked);
        let Verdict::Goes(marker, change) = verdict else { return None };
        // The script compares texts, and a marker may be written in more ways than ours.
        let changes = marker.to_string() != news.marker;
        let written = if changes { news.micros / 1_000 } else { marker.written };
        let marker = Marker { written, ..marker };
        let replaces = changes.then(|| news.marker.clone());
        let seen = Arc::new(Seen::new(&marker, change, asked, replaces));
        let mut known = self.judging.known.lock();
        known.seen = Some(Arc::clone(&seen));
        known.noted = Noted::read(&news.note);
        known.clock = Some(NodeClock { micros: news.micros, read });
        Some(seen)
    }
}

impl Retry for Attempt {
    fn batch(&self) -> &Batch {
        &self.batch
    }

    fn settled(&self) -> &[Op] {
        self.settled.as_ref().unwrap_or(&self.batch.ops)
    }

    fn without(&mut self, overtaken_by: &[Op]) -> Option<Vec<u8>> {
        let shares = |op: &Op| overtaken_by.iter().any(|other| op.shares_an_owner_with(other));
        let places = self.places.take()?;
        let ops = self.batch.ops.iter().cloned().zip(places);
        let (late, rest): (Vec<_>, Vec<_>) = ops.partition(|(op, _)| shares(op));
        if let Some(Ok(came)) = &mut self.sent_with.lock().came {
            for (_, at) in &late {
                came.items[*at] = Some(Err(overtaken()));
            }
        }
        let (ops, places): (Vec<_>, Vec<_>) = rest.into_iter().unzip();
        let is_over = ops.is_empty();
        self.batch = Arc::new(Batch { ops, ..Batch::clone(&self.batch) });
        self.places = Some(places);
        (!is_over).then(|| self.encode())
    }

    fn again(&mut self, answer: &mut Value) -> Option<Vec<u8>> {
        self.settled = None;
        let Some(news) = News::read(answer) else { return self.plan_rest(answer) };
        let bytes = self.judge_again(&news)?;
        self.settled = Some(Vec::new());
        Some(bytes)
    }
}

impl Attempt {
    fn judge_again(&mut self, news: &News) -> Option<Vec<u8>> {
        self.tries = self.tries.checked_sub(1)?;
        let (sent_with, plans) = {
            let mut sent_with = self.sent_with.lock();
            (sent_with.seen.clone(), std::mem::take(&mut sent_with.plans))
        };
        {
            let mut beliefs = self.judging.beliefs.lock();
            plans.into_iter().rev().flatten().for_each(|planned| beliefs.forget(planned));
        }
        let known = self.judging.known.lock().clone();
        let asked = Judging::asked(&self.batch, self.group_terms);
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
        let seen = self.judged(news, self.judging.env.now())?;
        if seen.replaces.is_none() && self.batch.ops.is_empty() {
            self.sent_with.lock().seen = Some(seen);
            return None;
        }
        Some(self.encode_under(Some(seen), Noted::read(&news.note)))
    }
}

pub(super) enum Begun {
    Writes(Vec<u8>),
    Knows(TimedFacts),
}

fn overtaken() -> NodeError {
    let detail =
        "a later request of its owner came first, because the record or lock was another one";
    NodeError::not_executed(NodeFault::Contended, detail)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::env::SystemEnv;
    use crate::name::LockKeys;
    use crate::node::lineage::ReplicationId;
    use crate::node::redis::encode::Named;
    use crate::op::{LockMode, Remembered, Terms};
    use crate::token::OwnerToken;

    const NOW: i64 = 1_790_000_000_000_000;

    fn release() -> Arc<Batch> {
        let (mode, keys) = (LockMode::Exclusive, LockKeys::new("k"));
        let owner = OwnerToken::from_random(1);
        let ops = vec![Op::Release { mode, keys, owner, meta: false }];
        let terms = Terms { max_ttl: Duration::from_secs(30), clock_error: Duration::from_secs(1) };
        Arc::new(Batch { terms, not_after: None, remembers: Remembered::default(), ops })
    }

    /// Number 5 of `lua/batch.lua`.
    fn limit(packed: &[u8]) -> u64 {
        let text = String::from_utf8_lossy(packed);
        let numbers = text.split("\r\n").find(|part| part.split(' ').count() == 11);
        let limit = numbers.expect("eleven numbers").split(' ').nth(4);
        limit.and_then(|digits| digits.parse().ok()).expect("a number")
    }

    /// The value of its reservations is the owner of all of them.
    #[test]
    fn a_handles_releases_of_two_locks_do_not_overtake_each_other() {
        let release = |name, owner| {
            let (mode, keys) = (LockMode::Exclusive, LockKeys::new(name));
            Op::Release { mode, keys, owner, meta: true }
        };
        let (handle, owner) = (OwnerToken::reserved_for(1), OwnerToken::from_random(1));
        assert!(release("a", handle).shares_an_owner_with(&release("a", handle)));
        assert!(!release("a", handle).shares_an_owner_with(&release("b", handle)));
        assert!(release("a", owner).shares_an_owner_with(&release("b", owner)));
    }

    fn attempt(until: Option<Moment>) -> (Attempt, Arc<SyncMutex<SentWith>>) {
        attempt_of(release(), until)
    }

    fn attempt_of(batch: Arc<Batch>, until: Option<Moment>) -> (Attempt, Arc<SyncMutex<SentWith>>) {
        let named = Some(Named { epoch: Some(3), until, since: None, disturbed: None });
        let judging = Judging::new("0123456789abcdef".into(), "at".into(), Arc::new(SystemEnv));
        let group_terms = GroupTerms { named, ..GroupTerms::ALONE };
        let attempt = Attempt::new(&Arc::new(judging), batch, group_terms);
        let sent_with = Arc::clone(&attempt.sent_with);
        (attempt, sent_with)
    }

    fn news(marker: &str) -> Value {
        let text = |text: &str| Value::BulkString(text.into());
        let replid = "0".repeat(40);
        let news = [text("news"), Value::Int(NOW), text(marker), text(""), text(&replid)];
        let counters = [text("10"), Value::Int(0), Value::Int(0), text("0"), text("")];
        Value::Array([&news[..], &counters[..]].concat())
    }

    /// A connection whose first touch failed learns the clock from the first batch. Without it the
    /// batch counted as late, and the Sentinels as silent.
    #[test]
    fn the_sentinels_word_ends_by_the_clock_of_the_first_answer() {
        let until = SystemEnv.now() + Duration::from_secs(600);
        let (mut attempt, sent_with) = attempt(Some(until));
        assert_eq!(limit(&attempt.encode()), 1);
        let again = attempt.again(&mut news("")).expect("it was judged");
        let least = NOW.unsigned_abs() + 500_000_000;
        assert!((least..=least + 100_000_000).contains(&limit(&again)));
        assert!(sent_with.lock().is_bounded);
    }

    fn ours() -> Marker {
        let born = Marker::born(0xab, 2, 3, ReplicationId::parse(&"0".repeat(40)).unwrap());
        Marker { clock_error: 1_000_000, quarantine: 30_000, epoch: 3, ..born }
    }

    /// A connection sends its first batch, without ops, only if there is a marker to write.
    #[test]
    fn a_connection_begins_by_what_the_login_showed() {
        let begin = |shown: &str| {
            let nothing = Batch { ops: Vec::new(), ..(*release()).clone() };
            let (attempt, sent_with) = attempt_of(Arc::new(nothing), None);
            let news = News::read(&news(shown)).expect("it is news");
            let (sent, received) = (Moment::from_nanos(1), Moment::from_nanos(2));
            (attempt.begin(&Look { news, sent, received }), sent_with)
        };
        let Ok(Begun::Knows(known)) = begin(&ours().to_string()).0 else {
            panic!("nothing is due")
        };
        assert_eq!((known.sent, known.received), (Moment::from_nanos(1), Moment::from_nanos(2)));
        assert_eq!((known.facts.history_id, known.facts.new_history), (ours().history, false));
        assert_eq!(known.facts.node_micros, NOW.unsigned_abs());
        let behind = Marker { epoch: 2, ..ours() }.to_string();
        for shown in ["", &*behind] {
            let (first, sent_with) = begin(shown);
            let Ok(Begun::Writes(bytes)) = first else { panic!("a history is due") };
            let seen = sent_with.lock().seen.clone().expect("a marker");
            assert_eq!(seen.replaces.as_deref(), Some(shown));
            assert!(String::from_utf8(bytes).unwrap().contains(seen.text()));
        }
        let handover = Some(lineage::Handover::Closed(NOW.unsigned_abs() / 1_000 + 5));
        let (closed, _) = begin(&Marker { handover, ..ours() }.to_string());
        assert_eq!(closed.err().expect("it is closed").fault(), NodeFault::HandingOver);
    }

    /// A proxy kept the connection while the server was restarted from a copy.
    #[test]
    fn the_process_is_that_of_the_counters_and_not_that_of_the_login() {
        let Value::Array(mut items) = news("") else { unreachable!() };
        for (run_id, run) in [("", 0), ("xyz", 0), ("00000000000000aabbccddee", 0xaa)] {
            *items.last_mut().unwrap() = Value::BulkString(run_id.into());
            let news = News::read(&Value::Array(items.clone())).expect("it is news");
            assert_eq!(news.shown(None, Moment::default()).process.run, run);
        }
    }

    #[test]
    fn a_batch_without_ops_ends_with_the_sentinels_word_too() {
        let until = SystemEnv.now() + Duration::from_secs(600);
        let nothing = Batch { ops: Vec::new(), ..(*release()).clone() };
        let (attempt, _) = attempt_of(Arc::new(nothing), Some(until));
        assert_eq!(limit(&attempt.encode()), 1);
    }

    /// The script refuses a marker that was judged long ago, by its time.
    #[test]
    fn each_marker_that_is_to_be_written_has_the_time_of_its_judgement() {
        let ours = ours().to_string();
        let foreign = ours.replacen("ab", "AB", 1);
        for (shown, writes) in [(&ours, false), (&foreign, true), (&String::new(), true)] {
            let (mut attempt, sent_with) = attempt(None);
            attempt.again(&mut news(shown)).expect("it was judged");
            let seen = sent_with.lock().seen.clone().expect("a marker");
            assert_eq!(seen.replaces.is_some(), writes, "{shown}");
            let written = if writes { NOW.unsigned_abs() / 1_000 } else { 0 };
            assert_eq!(seen.marker.written, written, "{shown}");
        }
    }
}
