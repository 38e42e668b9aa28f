//! Watches an election: each change is reported once, and terms never go backwards.
//!
//! Every state comes from a read of a majority; hints from the nodes and a timer only decide when
//! to read. A change between two reads that is undone again leaves no trace, so an item reports
//! whether something may have been missed.

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

/// Shortest and longest pause between two reads when no hint arrives. The longest one keeps this
/// process's request for hints alive on the nodes, which drop it after ten seconds.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(4));

/// A change in an election.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observation {
    /// There is a leader: a new term, or a new value in the same term, or known again after
    /// [`Vacant`](Self::Vacant) or [`Resynced`](Self::Resynced).
    Leader {
        /// The leader.
        leader: Leader,
        /// True if values or terms may have been missed since the previous leader in this stream.
        /// Exact for the values of one term, which are numbered. Between two terms it is always
        /// true: another leader between two reads would have left no trace.
        gap: bool,
    },
    /// There is no leader, or the winner has not proclaimed its value yet.
    Vacant,
    /// Too few nodes answer, so the leader is unknown; the last leader may still lead.
    Disconnected(NoQuorum),
    /// The nodes answer again after [`Disconnected`](Self::Disconnected). The next item has the
    /// state, even if nothing has changed.
    Resynced {
        /// True if leaders, values or vacancies may have been missed while the nodes did not
        /// answer. False only if nothing was known before either, or the same term goes on and no
        /// value of it is missing.
        gap: bool,
    },
}

impl Election {
    /// Yields the present state, and then each change, in order and each once, until the handle is
    /// [closed](crate::Redlock::close). The first item comes as soon as the nodes have answered or
    /// failed to. Slow readers get the latest state, not every one.
    ///
    /// Changes are read within milliseconds where the nodes give hints, and within about a third of
    /// the ttl (4 s at most) where they do not.
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
    /// The item to yield after an [`Observation::Resynced`].
    next: Option<Observation>,
    floor: Floor,
    vacancy: Vacancy,
}

/// State of what was yielded so far.
struct Seen {
    last: Last,
    /// Term and number of the last value yielded.
    known: Option<(FencingToken, u64)>,
    /// True if a read has ever been answered by a majority.
    any: bool,
}

impl Watch {
    /// Returns the next change; `None` once the handle is closed.
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
    /// `rest`, after which the leader's lease ends.
    fn pause(&self, rest: Duration) -> Duration {
        let base = (self.election.ttl / 3).clamp(POLL.0, POLL.1);
        // Spread over ±25 %, because otherwise all observers would read at once.
        let random = (self.election.core.env.random() & 0xFFFF) as u32;
        let spread = base.mul_f64(0.75 + f64::from(random) / f64::from(0x1_FFFF_u32));
        spread.min(rest.saturating_add(Duration::from_millis(2)))
    }
}

impl Seen {
    /// Returns the items for a read, if anything has changed: one item, or two after a
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

    /// Returns the item for a read, if it differs from the last one.
    fn item(&mut self, read: Result<Option<Leader>, LeaderError>) -> Option<Observation> {
        let before = self.last;
        match read {
            Ok(Some(leader)) if self.known.is_none_or(|k| (leader.term, leader.number) >= k) => {
                let now = (leader.term, leader.number);
                if before == Last::Leader && self.known == Some(now) {
                    return None;
                }
                let gap = match self.known {
                    // Another process may have led since a vacancy was seen.
                    None => before == Last::Disconnected && self.any,
                    Some((term, number)) => term != now.0 || now.1 - number > 1,
                };
                (self.last, self.known) = (Last::Leader, Some(now));
                Some(Observation::Leader { leader, gap })
            }
            // An older value of the known term: a proclaim is running, or one node is behind.
            Ok(Some(leader)) if self.known.is_some_and(|k| leader.term == k.0) => None,
            // An older term comes from nodes that lost their last writes; its leader no longer
            // leads.
            Ok(_) => {
                self.last = Last::Vacant;
                (before != Last::Vacant).then_some(Observation::Vacant)
            }
            Err(LeaderError::NoQuorum(why)) => {
                self.last = Last::Disconnected;
                (before != Last::Disconnected).then_some(Observation::Disconnected(why))
            }
            // A closed handle has ended the observer before this is called.
            Err(LeaderError::Closed(_)) => None,
        }
    }
}
