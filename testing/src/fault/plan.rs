//! The faults of one call of a node, and the random numbers that choose them.

use std::time::Duration;

/// The message of a call that is lost, if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// The request and its reply arrive.
    #[default]
    Deliver,
    /// The request is lost, and the node never executes it. The caller waits until its deadline.
    LoseRequest,
    /// The node executes the request, and the reply is lost. The caller waits until its deadline.
    LoseReply,
}

/// All faults of one call. The default has no faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Time for which the request is under way.
    pub before: Duration,
    /// Time for which the reply is under way.
    pub after: Duration,
    /// The message that is lost, if there is one.
    pub fate: Fate,
    /// Time after which the node executes the request a second time; `None` without a second
    /// execution.
    pub duplicate: Option<Duration>,
    /// True if the node loses data just before it executes the request.
    pub forgetting: bool,
}

impl Step {
    /// Returns a step without faults.
    pub fn fine() -> Self {
        Self::default()
    }

    /// Returns a step that delays the request by `before`.
    pub fn delay(before: Duration) -> Self {
        Self { before, ..Self::default() }
    }

    /// Returns a step that delays the reply by `after`.
    pub fn delay_reply(after: Duration) -> Self {
        Self { after, ..Self::default() }
    }

    /// Returns a step that loses the request.
    pub fn lose_request() -> Self {
        Self { fate: Fate::LoseRequest, ..Self::default() }
    }

    /// Returns a step that loses the reply. The node executes the request.
    pub fn lose_reply() -> Self {
        Self { fate: Fate::LoseReply, ..Self::default() }
    }

    /// Returns a step with a duplicate: the node executes the request again, `later` after the
    /// first time.
    pub fn duplicate(later: Duration) -> Self {
        Self { duplicate: Some(later), ..Self::default() }
    }

    /// Returns a step with a loss of data: the node loses data and then executes the request.
    pub fn forget() -> Self {
        Self { forgetting: true, ..Self::default() }
    }
}

/// Probabilities of the faults of a call, from 0 to 1. They are independent of each other. All are
/// 0 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Odds {
    /// Probability that the request is lost.
    pub lose_request: f64,
    /// Probability that the reply is lost.
    pub lose_reply: f64,
    /// Probability that the node executes the request twice. The second time is within `max_delay`.
    pub duplicate: f64,
    /// Probability that the request is late, by up to `max_delay`. The reply is late with the same
    /// probability, independently of the request.
    pub delay: f64,
    /// Probability that the node loses data before it executes the request.
    pub forget: f64,
    /// Longest delay.
    pub max_delay: Duration,
}

/// `SplitMix64`: the same numbers on every machine and in every version.
#[derive(Debug)]
pub(super) struct Dice {
    state: u64,
    odds: Odds,
}

impl Dice {
    pub(super) fn new(seed: u64, odds: Odds) -> Self {
        Self { state: seed, odds }
    }

    /// Each call uses the same number of random numbers: a change of one probability does not
    /// change the other faults.
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
        // In whole microseconds: no timer is finer, and every machine rounds them in the same way.
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
