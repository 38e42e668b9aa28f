//! Messages that are held (consumers 12), because nodes lost data, too few of them know whether the
//! message was handled before, and no operator has decided yet. A held message stays with its
//! broker and is delivered again after a pause. Here it is only counted, for the pauses, the log
//! and the metrics.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::gate::Shut;
use crate::health::Waiting;
use crate::idempotency::metrics::Counters;
use crate::idempotency::{Idempotency, Parked};
use crate::op::Loss;

/// Shortest and longest pause before a held message is delivered again, without the random part
/// that is subtracted.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// Interval at which the log repeats that messages are held.
const REPORT: Duration = Duration::from_secs(60);
/// Time since the last delivery of a held message after which another consumer is assumed to have
/// it, so that it is not counted here any more.
const GONE: Duration = Duration::from_secs(180);
/// Largest number of held messages that are counted.
const MOST: usize = 100_000;

/// The messages that one run of a consumer holds until an operator decides.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(super) of: Idempotency,
    state: Mutex<State>,
    /// State of a consumer that takes no messages because the nodes are not initialised: why, and
    /// since when.
    pub(super) shut: Shut,
}

/// The running consumers that use one [`Idempotency`] handle or a clone of it.
#[derive(Debug, Default)]
pub(crate) struct Holdings(Mutex<Vec<Weak<Holding>>>);

impl Holdings {
    pub(super) fn add(&self, holding: &Arc<Holding>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(holding));
    }

    /// Returns for which actions of an operator these consumers wait, and since when.
    pub(crate) fn waiting(&self) -> Vec<Waiting> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.iter().filter_map(Weak::upgrade).flat_map(|one| one.waiting()).collect()
    }
}

#[derive(Debug, Default)]
struct State {
    /// Time since which at least one message has been held; `None` while none is held.
    since: Option<Instant>,
    /// Text of the message that was held last: why it is held, and what an operator has to do.
    why: String,
    /// Keys of the held messages with the time of their last delivery.
    held: BTreeMap<Arc<str>, Instant>,
    /// Losses of data, without a decision of an operator, for which messages were held since the
    /// last line of the log.
    losses: Vec<Loss>,
}

impl Holding {
    pub(super) fn new(of: &Idempotency) -> Self {
        Self { of: of.clone(), state: Mutex::default(), shut: Shut::default() }
    }

    /// Returns for which actions of an operator this consumer waits, and since when.
    fn waiting(&self) -> Vec<Waiting> {
        let shut = self.shut.read().map(|(since, why)| (0, since, why));
        let state = self.state();
        let held = state.since.map(|since| (state.held.len() as u64, since, state.why.clone()));
        let waiting = |(messages, since, why): (_, Instant, _)| Waiting {
            messages,
            waited: since.elapsed(),
            why,
        };
        shut.into_iter().chain(held).map(waiting).collect()
    }

    /// Counts a message as held. Returns the pause after which it is delivered again: the time for
    /// which messages have been held so far, within `PAUSES`, minus a random part of up to a
    /// quarter.
    pub(super) fn hold(&self, key: &Arc<str>, parked: &Parked) -> Duration {
        let now = Instant::now();
        let mut state = self.state();
        for loss in &parked.losses {
            // The end of a loss (`to`) moves when clients with a longer failover window connect, so
            // losses are compared without it.
            let same = |known: &&mut Loss| (known.from, known.began) == (loss.from, loss.began);
            match state.losses.iter_mut().find(same) {
                Some(known) => known.to = known.to.max(loss.to),
                None => state.losses.push(*loss),
            }
        }
        if state.held.len() < MOST || state.held.contains_key(key) {
            let new = state.held.insert(Arc::clone(key), now).is_none();
            self.counters().holds(i64::from(new));
        }
        // A later message may be held because of another loss than the first message, so the text
        // is replaced.
        state.why = parked.to_string();
        if state.since.is_none() {
            state.since = Some(now);
            tracing::warn!(
                target: "palisade::consumer", namespace = self.of.namespace(), why = %parked,
                "messages are held until an operator decides"
            );
        }
        let held_for = state.since.map_or(Duration::ZERO, |since| now - since);
        let pause = held_for.clamp(PAUSES.0, PAUSES.1);
        let random = u32::try_from(self.of.core.env.random() % 1_000).unwrap_or_default();
        pause.saturating_sub(pause / 4_000 * random)
    }

    /// Removes a message that is not held any more from the count.
    pub(super) fn release(&self, key: &Arc<str>) {
        let mut state = self.state();
        if state.held.remove(key).is_some() {
            self.counters().holds(-1);
            self.end(&mut state);
        }
    }

    /// Logs once a minute that messages are held, if any are, and stops counting those that another
    /// consumer is assumed to have. Never returns.
    pub(super) async fn watch(&self) -> Infallible {
        loop {
            sleep(REPORT).await;
            let now = Instant::now();
            let mut state = self.state();
            let before = state.held.len();
            state.held.retain(|_, last| now < *last + GONE);
            let gone = before - state.held.len();
            self.counters().holds(-i64::try_from(gone).unwrap_or_default());
            self.end(&mut state);
            if let Some(since) = state.since {
                tracing::warn!(
                    target: "palisade::consumer", namespace = self.of.namespace(),
                    held = state.held.len(), for_secs = (now - since).as_secs(),
                    losses = %Losses(&state.losses),
                    "messages are held until an operator decides (`palisade idem decide`)"
                );
                state.losses.clear();
            }
        }
    }

    /// Logs that no message is held any more, if the last one was just removed.
    fn end(&self, state: &mut State) {
        if state.held.is_empty()
            && let Some(since) = state.since.take()
        {
            state.losses.clear();
            tracing::info!(
                target: "palisade::consumer", namespace = self.of.namespace(),
                for_secs = since.elapsed().as_secs(), "no message is held any more"
            );
        }
    }

    fn counters(&self) -> &Counters {
        &self.of.counters
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let held = self.state().held.len();
        self.counters().holds(-i64::try_from(held).unwrap_or_default());
    }
}

/// A list of losses of data with their numbers, shown in one line.
struct Losses<'a>(&'a [Loss]);

impl std::fmt::Display for Losses<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, loss) in self.0.iter().enumerate() {
            write!(f, "{}{}: {loss}", if i == 0 { "" } else { "; " }, loss.number())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::ParkedReason;
    use crate::{MemoryNode, Redlock};

    fn holding() -> Holding {
        let redlock = Redlock::builder().node(MemoryNode::new()).build().unwrap();
        Holding::new(&redlock.idempotency("orders").at_most_once().build().unwrap())
    }

    fn hold(holding: &Holding, losses: &[Loss]) {
        holding.hold(&Arc::from("order-7"), &parked(holding, losses));
    }

    fn parked(holding: &Holding, losses: &[Loss]) -> Parked {
        Parked {
            key: holding.of.key("order-7").name(),
            attempt: 0,
            reason: ParkedReason::Forgotten,
            forgotten_for: Duration::ZERO,
            losses: losses.to_vec(),
            undecided: true,
        }
    }

    #[tokio::test]
    async fn a_hundred_thousand_held_messages_are_counted_at_most() {
        let holding = holding();
        let parked = parked(&holding, &[]);
        let key = |n: u32| Arc::from(format!("order-{n}"));
        for n in 0..=100_000 {
            holding.hold(&key(n), &parked);
        }
        let counted = || holding.waiting()[0].messages;
        assert_eq!(counted(), 100_000);
        // A counted message stays counted when it is delivered again. Another one is counted only
        // after one has been released.
        holding.hold(&key(0), &parked);
        assert_eq!(counted(), 100_000);
        holding.release(&key(0));
        assert_eq!(counted(), 99_999);
        holding.hold(&key(100_000), &parked);
        assert_eq!(counted(), 100_000);
    }

    #[tokio::test]
    async fn a_loss_whose_end_moves_is_reported_once() {
        let (holding, long_ago) = (holding(), Loss::between(0, 1_000));
        for window in [0, 3_000, 12_000, 3_000] {
            let latest = Loss { to: 5_000 + window, ..Loss::between(2_000, 5_000) };
            hold(&holding, &[long_ago, latest]);
        }
        let longest = Loss { to: 17_000, ..Loss::between(2_000, 5_000) };
        assert_eq!(holding.state().losses, [long_ago, longest]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_follows_from_the_loss_that_is_undecided_now() {
        let (holding, minute) = (holding(), Duration::from_secs(61));
        let (first, second) = (Loss::between(0, 1_000), Loss::between(70_000, 75_000));
        let why = || holding.waiting()[0].why.clone();
        hold(&holding, &[first]);
        assert!(why().contains(&first.number()), "{}", why());
        // An operator decided about the first loss, and another one occurred before the message
        // came again.
        let _ = tokio::time::timeout(minute, holding.watch()).await;
        hold(&holding, &[second]);
        assert!(why().contains(&second.number()) && !why().contains(&first.number()), "{}", why());
        assert_eq!(holding.state().losses, [second]);
        assert_eq!(holding.waiting()[0].waited, minute);
    }
}
