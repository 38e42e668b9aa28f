//! Watching an election: each change once, terms never backwards.
//!
//! The truth is a read of a majority; hints from the nodes and a timer only say when to read. What
//! happens between two reads leaves no trace, so an item says whether something may have been
//! missed.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use super::Election;
use super::error::LeaderError;
use super::value::Leader;
use crate::driver::hints::{Floor, Waiting};
use crate::driver::runtime::within;
use crate::error::NoQuorum;
use crate::metrics::Vacancy;
use crate::node::BoxFuture;
use crate::token::FencingToken;

/// Bounds of the pause between two reads when no hint comes. The upper one keeps our request for
/// hints alive on the nodes, which forget it after ten seconds.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(4));

/// One change in an election.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observation {
    /// Somebody leads: a new term, or a new value in the same term, or known again after
    /// [`Vacant`](Self::Vacant) or [`Unknown`](Self::Unknown).
    Leader {
        /// The leader.
        leader: Leader,
        /// Values or terms may have been missed since the leader before in this stream. Exact for
        /// the values of one term, which are numbered. Between two terms it is always true: another
        /// leader between two reads would have left no trace.
        gap: bool,
    },
    /// Nobody leads, or the winner has not proclaimed its value yet.
    Vacant,
    /// It is unknown now; the last leader may still lead.
    Unknown(NoQuorum),
}

impl Election {
    /// Yields the leader now and then each change, until the handle is
    /// [closed](crate::Redlock::close). Slow readers get the latest, not every one.
    ///
    /// Changes are read within milliseconds where the nodes give hints, and within about a third of
    /// the ttl (4 s at most) where they do not.
    pub fn observe(&self) -> Observer {
        let waiting = self.core.hints.wait(self.keys.lock());
        let (election, floor) = (self.clone(), Floor::default());
        let vacancy = Vacancy::new(&self.core.meters.election(&self.name));
        let (last, known) = (Last::Nothing, None);
        let watch = Watch { election, waiting, last, known, floor, vacancy };
        Observer { next: Some(Box::pin(watch.change())) }
    }
}

/// The changes of one election; see [`Election::observe`].
///
/// Also a [`Stream`] of [`Observation`]s.
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
    /// The next change; the first call returns the present state. `None` once the handle is
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

/// The last item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Nothing,
    Leader,
    Vacant,
    Unknown,
}

struct Watch {
    election: Election,
    waiting: Waiting,
    last: Last,
    /// Term and number of the last value yielded.
    known: Option<(FencingToken, u64)>,
    floor: Floor,
    vacancy: Vacancy,
}

impl Watch {
    /// The next change; none once the handle is closed.
    async fn change(mut self) -> Option<(Self, Observation)> {
        let core = std::sync::Arc::clone(&self.election.core);
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
                self.vacancy.looked(seen.as_ref().ok().map(Option::is_some), core.env.now());
                let news = judge(&mut self.last, &mut self.known, seen);
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
            if let Some(item) = item {
                return Some((self, item));
            }
        }
    }

    /// About a third of the ttl, but not far beyond the moment when the leader's lease runs out.
    fn pause(&self, rest: Duration) -> Duration {
        let base = (self.election.ttl / 3).clamp(POLL.0, POLL.1);
        // Spread over ±25 %, or all observers would read at once.
        let dice = (self.election.core.env.random() & 0xFFFF) as u32;
        let spread = base.mul_f64(0.75 + f64::from(dice) / f64::from(0x1_FFFF_u32));
        spread.min(rest.saturating_add(Duration::from_millis(2)))
    }
}

/// Whether a read is news, and what it is called.
fn judge(
    last: &mut Last,
    known: &mut Option<(FencingToken, u64)>,
    seen: Result<Option<Leader>, LeaderError>,
) -> Option<Observation> {
    let before = *last;
    match seen {
        Ok(Some(leader)) if known.is_none_or(|k| (leader.term, leader.number) >= k) => {
            let now = (leader.term, leader.number);
            if before == Last::Leader && *known == Some(now) {
                return None;
            }
            let gap = match *known {
                None => false,
                Some((term, number)) => term != now.0 || now.1 - number > 1,
            };
            (*last, *known) = (Last::Leader, Some(now));
            Some(Observation::Leader { leader, gap })
        }
        // An older value of the term that is known: a proclaim is under way, or one node is behind.
        Ok(Some(leader)) if known.is_some_and(|k| leader.term == k.0) => None,
        // An older term on nodes that lost their last writes no longer leads.
        Ok(_) => {
            *last = Last::Vacant;
            (before != Last::Vacant).then_some(Observation::Vacant)
        }
        Err(LeaderError::NoQuorum(why)) => {
            *last = Last::Unknown;
            (before != Last::Unknown).then_some(Observation::Unknown(why))
        }
        // The observer has ended.
        Err(LeaderError::Closed(_)) => None,
    }
}
