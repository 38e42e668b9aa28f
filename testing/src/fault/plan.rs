//! What happens to one call, and the dice that decide it.

use std::time::Duration;

/// Whether a request arrives and its answer comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// Both ways go well.
    #[default]
    Deliver,
    /// Never executed; the caller gets no answer until its deadline.
    LoseRequest,
    /// Executed; the caller gets no answer until its deadline.
    LoseReply,
}

/// The whole fate of one call. The default changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// How long the request is under way.
    pub before: Duration,
    /// How long the answer is under way.
    pub after: Duration,
    /// What gets lost.
    pub fate: Fate,
    /// The request is executed a second time this long after the first.
    pub duplicate: Option<Duration>,
    /// The node forgets, just before it executes this.
    pub forgetting: bool,
}

impl Step {
    /// Nothing happens to this call.
    pub fn fine() -> Self {
        Self::default()
    }

    /// The request arrives late by this much.
    pub fn delay(before: Duration) -> Self {
        Self { before, ..Self::default() }
    }

    /// The answer arrives late by this much.
    pub fn delay_reply(after: Duration) -> Self {
        Self { after, ..Self::default() }
    }

    /// The request never arrives.
    pub fn lose_request() -> Self {
        Self { fate: Fate::LoseRequest, ..Self::default() }
    }

    /// The request is executed, its answer never arrives.
    pub fn lose_reply() -> Self {
        Self { fate: Fate::LoseReply, ..Self::default() }
    }

    /// The request is executed again `later` after the first time.
    pub fn duplicate(later: Duration) -> Self {
        Self { duplicate: Some(later), ..Self::default() }
    }

    /// The node forgets, then executes.
    pub fn forget() -> Self {
        Self { forgetting: true, ..Self::default() }
    }
}

/// Probabilities from 0 to 1 of what may happen to a call, each on its own. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Odds {
    /// Of losing the request.
    pub lose_request: f64,
    /// Of losing the reply.
    pub lose_reply: f64,
    /// Of executing the request twice, the second time within `max_delay`.
    pub duplicate: f64,
    /// Of a late request, by up to `max_delay`; and, thrown again, of a late reply.
    pub delay: f64,
    /// Of the node forgetting before it executes.
    pub forget: f64,
    /// The longest delay.
    pub max_delay: Duration,
}

/// A generator (`SplitMix64`) that is the same on every machine and in every version.
#[derive(Debug)]
pub(super) struct Dice {
    state: u64,
    odds: Odds,
}

impl Dice {
    pub(super) fn new(seed: u64, odds: Odds) -> Self {
        Self { state: seed, odds }
    }

    /// The next call's fate. Always throws the same number of dice, so that one probability can be
    /// changed without shifting the others.
    pub(super) fn roll(&mut self) -> Step {
        let odds = self.odds;
        let fate = match (self.hit(odds.lose_request), self.hit(odds.lose_reply)) {
            (true, _) => Fate::LoseRequest,
            (_, true) => Fate::LoseReply,
            _ => Fate::Deliver,
        };
        let twice = self.hit(odds.duplicate);
        let later = self.part(odds.max_delay);
        Step {
            fate,
            duplicate: twice.then_some(later),
            before: self.late(),
            after: self.late(),
            forgetting: self.hit(odds.forget),
        }
    }

    fn late(&mut self) -> Duration {
        let hit = self.hit(self.odds.delay);
        let span = self.part(self.odds.max_delay);
        if hit { span } else { Duration::ZERO }
    }

    fn hit(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    fn part(&mut self, of: Duration) -> Duration {
        // Whole microseconds: no timer is finer, and no machine rounds them differently.
        let micros = (of.as_micros() as f64 * self.unit()) as u64;
        Duration::from_micros(micros)
    }

    /// From 0 (included) to 1 (excluded).
    fn unit(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
