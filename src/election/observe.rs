//! Watches an election: each change is reported once, and terms never go backwards.
//!
//! Every item comes from a read of a majority; hints from the nodes and a timer only decide when to
//! read. If something changes after a read and changes back before the next, no read shows it. So
//! an item reports whether something may have been missed.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use super::Election;
use super::error::LeaderError;
use super::value::Leader;
use crate::client::hints::{Floor, Waiting};
use crate::client::runtime::within;
use crate::error::NoQuorum;
use crate::metrics::Vacancy;
use crate::node::BoxFuture;
use crate::token::FencingToken;

/// Shortest and longest pause between two reads when no hint arrives. Each read repeats this
/// process's request for hints, which the nodes drop after ten seconds, so the longest pause is
/// shorter than that.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(4));

/// A change in an election, as an observer reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observation {
    /// There is a leader. Its term or its value is new, or it is known again after
    /// [`Vacant`](Self::Vacant) or [`Resynced`](Self::Resynced).
    Leader {
        /// The leader, with its value.
        leader: Leader,
        /// True if values or terms may have been missed since the previous leader in this stream.
        /// Within one term this is exact, because values are numbered. For a leader of another term
        /// than the previous one it is always true, because a leader between two reads would have
        /// left no trace.
        gap: bool,
    },
    /// There is no leader, or the winner has not proclaimed its value yet.
    Vacant,
    /// Too few nodes answer, so it is unknown who leads. The last leader may still lead.
    Disconnected(NoQuorum),
    /// The nodes answer again after [`Disconnected`](Self::Disconnected). The next item reports who
    /// leads, even if nothing has changed.
    Resynced {
        /// True if leaders, values or vacancies may have been missed while the nodes did not
        /// answer. It is false only if no majority had answered before, or if the same term goes on
        /// and no value of it was missed.
        gap: bool,
    },
}

impl Election {
    /// Yields who leads at present, and then each change once and in order, until the handle is
    /// [closed](crate::Redlock::close). The first item comes as soon as the nodes have answered or
    /// failed to answer. A slow reader gets the latest state, and not each state before it.
    ///
    /// Changes are noticed within milliseconds if the nodes give hints, and otherwise within about
    /// a third of the ttl (4 s at most).
    pub fn observe(&self) -> Observer {
        let waiting = self.core.hints.wait(self.keys.lock(), None);
        let (election, floor) = (self.clone(), Floor::default());
        let seen = Seen { last: Last::Nothing, known: None, any: false };
        let vacancy = Vacancy::new(&self.core.meters.election(&self.name));
        let watch = Watch { election, waiting, seen, next: None, floor, vacancy };
        Observer { next: Some(Box::pin(watch.change())) }
    }
}

/// An observer of one election; see [`Election::observe`].
///
/// It is also a [`Stream`] of [`Observation`]s.
#[must_use = "an observer sees nothing until it is asked"]
pub struct Observer {
    next: Option<BoxFuture<'static, Option<(Watch, Observation)>>>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl Observer {
    /// Returns the next change; the first call returns the present state. `None` once the handle is
    /// [closed](crate::Redlock::close).
    ///
    /// # Cancellation safety
    /// If dropped, nothing is lost: the next call continues.
    pub async fn next(&mut self) -> Option<Observation> {
        poll_fn(|cx| self.poll_change(cx)).await
    }

    fn poll_change(&mut self, cx: &mut Context<'_>) -> Poll<Option<Observation>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let Poll::Ready(change) = next.as_mut().poll(cx) else { return Poll::Pending };
        let (watch, item) = change.map_or((None, None), |(w, item)| (Some(w), Some(item)));
        self.next = watch.map(|watch| Box::pin(watch.change()) as BoxFuture<'static, _>);
        Poll::Ready(item)
    }
}

impl Stream for Observer {
    type Item = Observation;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Observation>> {
        self.poll_change(cx)
    }
}

/// Kind of the item that was yielded last.
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
    /// Item to yield after an [`Observation::Resynced`], which comes first.
    next: Option<Observation>,
    floor: Floor,
    vacancy: Vacancy,
}

/// State of an observer: the items that it has yielded and the values that it has read.
struct Seen {
    last: Last,
    /// Term and number of the value that was yielded last.
    known: Option<(FencingToken, u64)>,
    /// True once a majority has answered a read.
    any: bool,
}

impl Watch {
    /// Waits for the next change and returns it; `None` once the handle is closed.
    async fn change(mut self) -> Option<(Self, Observation)> {
        let core = std::sync::Arc::clone(&self.election.core);
        if let Some(item) = self.next.take() {
            return Some((self, item));
        }
        core.listen();
        loop {
            let item = {
                // Listening begins before the read, so a change during the read is not missed.
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
                        let held_back = self.floor.wake(core.env.now());
                        within(held_back, std::future::pending::<()>()).await;
                    }
                }
                news
            };
            if let Some((item, next)) = item {
                self.next = next;
                return Some((self, item));
            }
        }
    }

    /// Returns the pause before the next read: about a third of the ttl, but not much longer than
    /// `rest`, which is what is left of the leader's lease.
    fn pause(&self, rest: Duration) -> Duration {
        let base = (self.election.ttl / 3).clamp(POLL.0, POLL.1);
        // Pauses vary by ±25 %, because otherwise all observers would read at the same time.
        let random = (self.election.core.env.random() & 0xFFFF) as u32;
        let spread = base.mul_f64(0.75 + f64::from(random) / f64::from(0x1_FFFF_u32));
        spread.min(rest.saturating_add(Duration::from_millis(2)))
    }
}

impl Seen {
    /// Returns the items to yield after a read, if anything has changed: one item, or two after a
    /// disconnection.
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

    /// Returns the item to yield after a read, if it differs from the last one.
    fn item(&mut self, read: Result<Option<Leader>, LeaderError>) -> Option<Observation> {
        let before = self.last;
        match read {
            Ok(Some(leader)) if self.known.is_none_or(|k| (leader.term, leader.number) >= k) => {
                let now = (leader.term, leader.number);
                if before == Last::Leader && self.known == Some(now) {
                    return None;
                }
                let gap = match self.known {
                    // No leader was yielded yet, but a vacancy was, and then the nodes did not
                    // answer. Another process may have led meanwhile.
                    None => before == Last::Disconnected && self.any,
                    Some((term, number)) => term != now.0 || now.1 - number > 1,
                };
                (self.last, self.known) = (Last::Leader, Some(now));
                Some(Observation::Leader { leader, gap })
            }
            // The value is older than the last one of the same term: a proclamation is under way,
            // or one node is behind. So this is no change.
            Ok(Some(leader)) if self.known.is_some_and(|k| leader.term == k.0) => None,
            // There is no leader, or the nodes show an older term. The latter happens after nodes
            // lost their last writes; the leader of that term no longer leads.
            Ok(_) => {
                self.last = Last::Vacant;
                (before != Last::Vacant).then_some(Observation::Vacant)
            }
            Err(LeaderError::NoQuorum(why)) => {
                self.last = Last::Disconnected;
                (before != Last::Disconnected).then_some(Observation::Disconnected(why))
            }
            // A closed handle ends the observer before this function is called.
            Err(LeaderError::Closed(_)) => None,
        }
    }
}
