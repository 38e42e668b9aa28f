//! Held messages (consumers 12). A held message stays with its broker, which delivers it again
//! after a pause. This module only counts them, for the pauses, the log and the metrics.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::internal::Waits;
use palisade::node::Loss;
use palisade::node::spi::{Env as _, SystemEnv};
use palisade::{Idempotency, Parked};
use tokio::time::{Instant, sleep};

/// Shortest and longest pause before the next delivery. A random part is subtracted later.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
const REPORT: Duration = Duration::from_secs(60);
/// After its last delivery, a message is no longer counted: another consumer has probably received
/// it.
const GONE: Duration = Duration::from_secs(180);
const MOST: usize = 100_000;

#[derive(Debug)]
pub(crate) struct Holding {
    pub(super) of: Idempotency,
    state: Mutex<State>,
    waits: Arc<Waits>,
}

#[derive(Debug, Default)]
struct State {
    /// Since when at least one message has been held.
    since: Option<Instant>,
    /// Of the last held message: the reason, and what the operator has to do.
    why: String,
    /// Keys, with the time of their last delivery.
    held: BTreeMap<Arc<str>, Instant>,
    /// Undecided losses because of which messages were held since the last warning.
    losses: Vec<Loss>,
}

impl Holding {
    pub(super) fn new(of: &Idempotency, waits: &Arc<Waits>) -> Self {
        Self { of: of.clone(), state: Mutex::default(), waits: Arc::clone(waits) }
    }

    /// No code panics, or awaits, in the middle of a change of the state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pause before its next delivery: the time for which messages have been held so
    /// far, within `PAUSES`, minus a random part of at most a quarter.
    pub(super) fn hold(&self, key: &Arc<str>, parked: &Parked) -> Duration {
        let now = Instant::now();
        let mut state = self.state();
        for loss in &parked.losses {
            // A client with a longer failover window may be told a later end of the same loss.
            let same = |known: &&mut Loss| (known.from, known.began) == (loss.from, loss.began);
            match state.losses.iter_mut().find(same) {
                Some(known) => known.to = known.to.max(loss.to),
                None => state.losses.push(*loss),
            }
        }
        if state.held.len() < MOST || state.held.contains_key(key) {
            state.held.insert(Arc::clone(key), now);
        }
        // This message may be held because of another loss than the earlier ones.
        state.why = parked.to_string();
        if state.since.is_none() {
            state.since = Some(now);
            tracing::warn!(
                target: "palisade::consumer", namespace = self.of.namespace(), why = %parked,
                "messages are held until an operator decides"
            );
        }
        self.report(&state);
        let held_for = state.since.map_or(Duration::ZERO, |since| now - since);
        let pause = held_for.clamp(PAUSES.0, PAUSES.1);
        let random = u32::try_from(SystemEnv.random() % 1_000).unwrap_or_default();
        pause.saturating_sub(pause / 4_000 * random)
    }

    pub(super) fn release(&self, key: &Arc<str>) {
        let mut state = self.state();
        if state.held.remove(key).is_some() {
            self.end(&mut state);
            self.report(&state);
        }
    }

    /// Warns once a minute while messages are held, and forgets those that another consumer has
    /// probably received. Never returns.
    pub(super) async fn watch(&self) -> Infallible {
        loop {
            sleep(REPORT).await;
            let now = Instant::now();
            let mut state = self.state();
            state.held.retain(|_, last| now < *last + GONE);
            self.end(&mut state);
            self.report(&state);
            if let Some(since) = state.since {
                let losses = state.losses.iter().map(|loss| format!("{}: {loss}", loss.number()));
                let losses = losses.collect::<Vec<_>>().join("; ");
                tracing::warn!(
                    target: "palisade::consumer", namespace = self.of.namespace(),
                    held = state.held.len(), for_secs = (now - since).as_secs(),
                    %losses, why = state.why,
                    "messages are held until an operator decides"
                );
                state.losses.clear();
            }
        }
    }

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

    fn report(&self, state: &State) {
        let cause = state.since.map(|since| (since, state.why.clone()));
        self.waits.holds(state.held.len() as u64, cause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade::idempotency::ParkedReason;
    use palisade::internal::made;
    use palisade::{MemoryNode, Redlock};

    fn holding() -> Holding {
        let redlock = Redlock::builder().node(MemoryNode::new()).build().unwrap();
        let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
        Holding::new(&orders, &Waits::new(&orders))
    }

    fn hold(holding: &Holding, losses: &[Loss]) {
        holding.hold(&Arc::from("order-7"), &parked(losses));
    }

    fn parked(losses: &[Loss]) -> Parked {
        made::parked(ParkedReason::Forgotten, losses, true)
    }

    fn between(from: u64, to: u64) -> Loss {
        Loss { from, began: to, to }
    }

    #[tokio::test]
    async fn a_hundred_thousand_held_messages_are_counted_at_most() {
        let holding = holding();
        let parked = parked(&[]);
        let key = |n: u32| Arc::from(format!("order-{n}"));
        for n in 0..=100_000 {
            holding.hold(&key(n), &parked);
        }
        let counted = || holding.waits.read()[0].messages;
        assert_eq!(counted(), 100_000);
        // A repeated delivery of a counted message does not change the count. A further message is
        // counted only after the release of another one.
        holding.hold(&key(0), &parked);
        assert_eq!(counted(), 100_000);
        holding.release(&key(0));
        assert_eq!(counted(), 99_999);
        holding.hold(&key(100_000), &parked);
        assert_eq!(counted(), 100_000);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_up_to_a_minute_and_are_spread_over_their_last_quarter() {
        let holding = holding();
        let parked = parked(&[]);
        for (later, longest) in [(0, 5_000), (20, 20_000), (600, 60_000)] {
            tokio::time::advance(Duration::from_secs(later)).await;
            let hold = |n| holding.hold(&Arc::from(format!("order-{n}")), &parked);
            let pauses: Vec<Duration> = (0..200).map(hold).collect();
            let longest = Duration::from_millis(longest);
            let quarter = longest * 3 / 4..=longest;
            assert!(pauses.iter().all(|pause| quarter.contains(pause)), "{pauses:?}");
            let (min, max) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
            assert!(
                max.saturating_sub(*min) > longest / 8,
                "messages come back together: {min:?} to {max:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_loss_whose_end_moves_is_reported_once() {
        let (holding, long_ago) = (holding(), between(0, 1_000));
        for window in [0, 3_000, 12_000, 3_000] {
            let latest = Loss { to: 5_000 + window, ..between(2_000, 5_000) };
            hold(&holding, &[long_ago, latest]);
        }
        let longest = Loss { to: 17_000, ..between(2_000, 5_000) };
        assert_eq!(holding.state().losses, [long_ago, longest]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_follows_from_the_loss_that_is_undecided_now() {
        let (holding, minute) = (holding(), Duration::from_secs(61));
        let (first, second) = (between(0, 1_000), between(70_000, 75_000));
        let why = || holding.waits.read()[0].why.clone();
        hold(&holding, &[first]);
        assert!(why().contains(&first.number()), "{}", why());
        // This part imitates an operator's decision about the first loss of data, followed by a
        // second loss before the next delivery.
        let _ = tokio::time::timeout(minute, holding.watch()).await;
        hold(&holding, &[second]);
        assert!(why().contains(&second.number()) && !why().contains(&first.number()), "{}", why());
        assert_eq!(holding.state().losses, [second]);
        assert_eq!(holding.waits.read()[0].waited, minute);
    }
}
