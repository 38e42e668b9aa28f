//! The clocks of a server: it judges expiries by its wall clock, as Redis does, in whole
//! milliseconds.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade::Moment;
use palisade::node::spi::Env;

use crate::dice::Dice;
use crate::plan::{Wave, wall};
use crate::world::World;

pub(super) struct ServerClock {
    world: Arc<World>,
    hands: Mutex<Hands>,
    dice: Mutex<Dice>,
}

struct Hands {
    wave: Wave,
    /// Out of its bound by so many microseconds.
    wild: i64,
    /// The sum of its steps backwards, in microseconds.
    set_back: u64,
    /// No fault moves it any more.
    calm: bool,
    /// Fixed reading while a halted batch is resumed.
    read: Option<u64>,
}

impl ServerClock {
    pub(super) fn new(world: &Arc<World>, wave: Wave, dice: Dice) -> Arc<Self> {
        let hands = Mutex::new(Hands { wave, wild: 0, set_back: 0, calm: false, read: None });
        Arc::new(Self { world: Arc::clone(world), hands, dice: Mutex::new(dice) })
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since 1970.
    pub(super) fn wall(&self) -> u64 {
        let nanos = self.world.nanos();
        let hands = self.hands();
        if let Some(read) = hands.read {
            return read;
        }
        wall(nanos, hands.wave.error(nanos) + hands.wild * 1_000)
    }

    /// Fixes the reading at which a halted batch began; `None`: shows the time again.
    pub(super) fn reread(&self, read: Option<u64>) {
        self.hands().read = read;
    }

    /// It is off by `error` µs from now on.
    pub(super) fn step(&self, error: i64) {
        let nanos = self.world.nanos();
        let mut hands = self.hands();
        let before = hands.wave.error(nanos) / 1_000;
        hands.wave = hands.wave.stepped(nanos, error);
        let after = hands.wave.error(nanos) / 1_000;
        hands.stepped(after - before);
    }

    /// It is off by so many µs more.
    pub(super) fn run_wild(&self, by: i64) {
        let mut hands = self.hands();
        if !hands.calm {
            hands.wild += by;
            hands.stepped(by);
        }
    }

    /// It is within its bound from now on.
    pub(super) fn mend(&self) {
        let mut hands = self.hands();
        let wild = hands.wild;
        hands.stepped(-wild);
        (hands.wild, hands.calm) = (0, true);
    }

    /// Returns the sum of its steps backwards, in microseconds.
    pub(super) fn set_back(&self) -> u64 {
        self.hands().set_back
    }
}

impl Hands {
    fn stepped(&mut self, by: i64) {
        self.set_back += by.min(0).unsigned_abs();
    }
}

impl fmt::Debug for ServerClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerClock").finish_non_exhaustive()
    }
}

impl Env for ServerClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.wall() / 1_000_000 * 1_000_000)
    }

    fn wall_micros(&self) -> u64 {
        self.wall() / 1_000
    }

    fn random(&self) -> u128 {
        u128::from(self.dice.lock().unwrap_or_else(PoisonError::into_inner).next())
    }
}
