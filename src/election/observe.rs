//! Watches an election. Each item is the result of a read from a majority; a change that is undone
//! before the next read is not seen, so [`Observation`] says if changes may have been missed.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, unfold};

use super::Election;
use super::error::LeaderError;
use super::value::Leader;
use crate::client::hints::{RateLimit, Waiting};
use crate::client::runtime::within;
use crate::error::NoQuorum;
use crate::metrics::Vacancy;
use crate::token::FencingToken;

/// Shortest and longest pause without a hint. The nodes drop a request for a hint after ten
/// seconds.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(4));

/// A change in an election, as an observer reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observation {
    /// There is a leader. The term or the value is new, or the previous item was
    /// [`Vacant`](Self::Vacant) or [`Resynced`](Self::Resynced).
    Leader {
        /// The leader, with its term and value.
        leader: Leader,
        /// True if the observer may have missed values or terms since the previous leader of this
        /// stream. Within one term this flag is exact, because values are numbered. For a new term
        /// the flag is always true: a leader between two reads leaves no trace.
        gap: bool,
    },
    /// There is no leader, or the winner has not proclaimed its value yet.
    Vacant,
    /// Too few nodes answer, so the leader is unknown. The last leader may still lead.
    Disconnected(NoQuorum),
    /// The nodes answer again after [`Disconnected`](Self::Disconnected). The next item reports the
    /// leader or the vacancy, even if nothing has changed.
    Resynced {
        /// True if the observer may have missed leaders, values or vacancies while the nodes did
        /// not answer. False if no majority had answered before. Also false if the same term
        /// continues and no value of this term was missed.
        gap: bool,
    },
}

impl Election {
    /// Returns an observer. It yields the present leader or vacancy, and then each change once and
    /// in order, until the handle is [closed](crate::Redlock::close). The first item comes after
    /// the first read, even if this read fails. A slow reader gets only the latest state.
    ///
    /// With hints from the nodes, the observer reports a change within milliseconds. Without hints
    /// it reports a change within about a third of the ttl (4 s at most).
    pub fn observe(&self) -> Observer {
        let waiting = self.core.hints.wait(self.keys.lock(), None);
        let (election, limit) = (self.clone(), RateLimit::default());
        let seen = Seen { last: Last::Nothing, known: None, any: false };
        let vacancy = Vacancy::new(&self.core.meters.election(&self.name));
        let watch = Watch { election, waiting, seen, next: None, limit, vacancy };
        Observer { changes: unfold(watch, Watch::change).fuse().boxed() }
    }
}

/// An observer of one election, made by [`Election::observe`].
///
/// An observer is also a [`Stream`] of [`Observation`]s.
#[must_use = "an observer sees nothing until it is asked"]
pub struct Observer {
    changes: BoxStream<'static, Observation>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl Observer {
    /// Returns the next change; the first call returns the present state. Returns `None` after the
    /// handle is [closed](crate::Redlock::close).
    ///
    /// # Cancellation safety
    /// If the future is dropped, no item is lost: the next call continues.
    pub async fn next(&mut self) -> Option<Observation> {
        self.changes.next().await
    }
}

impl Stream for Observer {
    type Item = Observation;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Observation>> {
        self.changes.poll_next_unpin(cx)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Nothing,
    Leader,
    Vacant,
    Disconnected,
}

struct Watch {
    election: Election,
    waiting: Waiting,
    seen: Seen,
    next: Option<Observation>,
    limit: RateLimit,
    vacancy: Vacancy,
}

struct Seen {
    last: Last,
    known: Option<(FencingToken, u64)>,
    any: bool,
}

impl Watch {
    async fn change(mut self) -> Option<(Observation, Self)> {
        let core = std::sync::Arc::clone(&self.election.core);
        if let Some(item) = self.next.take() {
            return Some((item, self));
        }
        core.listen();
        loop {
            let item = {
                // Before the read, so that no change is missed.
                let hint = self.waiting.any();
                let seen = self.election.look(true).await;
                if matches!(seen, Err(LeaderError::Closed(_))) {
                    return None;
                }
                let rest = match &seen {
                    Ok(Some(leader)) => leader.remaining,
                    _ => Duration::MAX,
                };
                self.vacancy.observed(seen.as_ref().ok().map(Option::is_some), core.env.now());
                let news = self.seen.judge(seen);
                if news.is_none() {
                    let woken = tokio::select! {
                        biased;
                        () = core.closing.begun() => return None,
                        woken = within(self.pause(rest), hint) => woken.is_some(),
                    };
                    if woken {
                        let held_back = self.limit.wake(core.env.now());
                        within(held_back, std::future::pending::<()>()).await;
                    }
                }
                news
            };
            if let Some((item, next)) = item {
                self.next = next;
                return Some((item, self));
            }
        }
    }

    /// At most 2 ms beyond `rest` of the leader's lease.
    fn pause(&self, rest: Duration) -> Duration {
        let base = (self.election.ttl / 3).clamp(POLL.0, POLL.1);
        // ±25 %, so that observers do not all read at the same time.
        let random = (self.election.core.env.random() & 0xFFFF) as u32;
        let spread = base.mul_f64(0.75 + f64::from(random) / f64::from(0x1_FFFF_u32));
        spread.min(rest.saturating_add(Duration::from_millis(2)))
    }
}

impl Seen {
    fn judge(
        &mut self,
        read: Result<Option<Leader>, LeaderError>,
    ) -> Option<(Observation, Option<Observation>)> {
        let (before, any) = (self.last, self.any);
        let item = self.item(read)?;
        if let Observation::Disconnected(_) = item {
            return Some((item, None));
        }
        self.any = true;
        if before != Last::Disconnected {
            return Some((item, None));
        }
        let gap = match &item {
            Observation::Leader { gap, .. } => *gap,
            _ => any,
        };
        Some((Observation::Resynced { gap }, Some(item)))
    }

    fn item(&mut self, read: Result<Option<Leader>, LeaderError>) -> Option<Observation> {
        let before = self.last;
        match read {
            Ok(Some(leader)) if self.known.is_none_or(|k| (leader.term, leader.number) >= k) => {
                let now = (leader.term, leader.number);
                if before == Last::Leader && self.known == Some(now) {
                    return None;
                }
                let gap = match self.known {
                    // After a vacancy and a disconnection, one may have led without being seen.
                    None => before == Last::Disconnected && self.any,
                    Some((term, number)) => term != now.0 || now.1 - number > 1,
                };
                (self.last, self.known) = (Last::Leader, Some(now));
                Some(Observation::Leader { leader, gap })
            }
            // Older than the last value of the term: a newer one is being published, or the nodes
            // do not have it yet.
            Ok(Some(leader)) if self.known.is_some_and(|k| leader.term == k.0) => None,
            // No leader, or an older term on nodes that lost their last writes; its leader no
            // longer leads.
            Ok(_) => {
                self.last = Last::Vacant;
                (before != Last::Vacant).then_some(Observation::Vacant)
            }
            Err(LeaderError::NoQuorum(why)) => {
                self.last = Last::Disconnected;
                (before != Last::Disconnected).then_some(Observation::Disconnected(why))
            }
            Err(LeaderError::Closed(_)) => None,
        }
    }
}
