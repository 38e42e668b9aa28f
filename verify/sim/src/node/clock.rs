//! The clock of a server. The server judges expiries by its wall clock in whole milliseconds, as
//! Redis does.

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
    /// Error beyond the bound, in microseconds.
    wild: i64,
    /// Sum of the clock's backward steps, in microseconds.
    set_back: u64,
    /// True after the end of all faults; no fault moves the clock any more.
    calm: bool,
    /// Fixed reading while a halted batch continues.
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

    /// Returns the wall-clock time in nanoseconds since 1970.
    pub(super) fn wall(&self) -> u64 {
        let nanos = self.world.nanos();
        let hands = self.hands();
        if let Some(read) = hands.read {
            return read;
        }
        wall(nanos, hands.wave.error(nanos) + hands.wild * 1_000)
    }

    /// Fixes the clock at the reading at which a halted batch began; `None` lets the clock run
    /// again.
    pub(super) fn reread(&self, read: Option<u64>) {
        self.hands().read = read;
    }

    /// Steps the clock; its error is `error` µs from now on.
    pub(super) fn step(&self, error: i64) {
        let nanos = self.world.nanos();
        let mut hands = self.hands();
        let before = hands.wave.error(nanos) / 1_000;
        hands.wave = hands.wave.stepped(nanos, error);
        let after = hands.wave.error(nanos) / 1_000;
        hands.stepped(after - before);
    }

    /// Adds `by` µs to the clock's error.
    pub(super) fn run_wild(&self, by: i64) {
        let mut hands = self.hands();
        if !hands.calm {
            hands.wild += by;
            hands.stepped(by);
        }
    }

    /// Ends the clock's error beyond its bound, for good.
    pub(super) fn mend(&self) {
        let mut hands = self.hands();
        let wild = hands.wild;
        hands.stepped(-wild);
        (hands.wild, hands.calm) = (0, true);
    }

    /// Returns the sum of the clock's backward steps, in microseconds.
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
