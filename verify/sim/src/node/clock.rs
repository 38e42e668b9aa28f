//! The clock of a simulated server. Like Redis, the server decides expiries by its wall clock, in
//! whole milliseconds.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade::Moment;
use palisade::node::spi::Env;

use crate::dice::Dice;
use crate::plan::{Wave, wall};
use crate::world::World;

pub(crate) struct ServerClock {
    world: Arc<World>,
    state: Mutex<ClockState>,
    dice: Mutex<Dice>,
}

struct ClockState {
    wave: Wave,
    /// Error in addition to the permitted clock error, in microseconds.
    wild: i64,
    /// Sum of the clock's backward steps, in microseconds.
    set_back: u64,
    /// True after the end of all faults. From then on, no fault changes the clock.
    faults_ended: bool,
    /// Fixed reading of the clock. It is set while the server, which stopped in the middle of a
    /// batch, executes the rest of that batch.
    read: Option<u64>,
}

impl ServerClock {
    pub(crate) fn new(world: &Arc<World>, wave: Wave, dice: Dice) -> Arc<Self> {
        let state =
            Mutex::new(ClockState { wave, wild: 0, set_back: 0, faults_ended: false, read: None });
        Arc::new(Self { world: Arc::clone(world), state, dice: Mutex::new(dice) })
    }

    fn state(&self) -> MutexGuard<'_, ClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the wall-clock time in nanoseconds since 1970.
    pub(super) fn wall(&self) -> u64 {
        let nanos = self.world.nanos();
        let state = self.state();
        if let Some(read) = state.read {
            return read;
        }
        wall(nanos, state.wave.error(nanos) + state.wild * 1_000)
    }

    /// Fixes the clock at `read`, the reading from the start of the batch in which the server was
    /// halted. With `None`, the clock runs again.
    pub(super) fn reread(&self, read: Option<u64>) {
        self.state().read = read;
    }

    /// Steps the clock to the error `error`, in microseconds.
    pub(super) fn step(&self, error: i64) {
        let nanos = self.world.nanos();
        let mut state = self.state();
        let before = state.wave.error(nanos) / 1_000;
        state.wave = state.wave.stepped(nanos, error);
        let after = state.wave.error(nanos) / 1_000;
        state.stepped(after - before);
    }

    /// Adds `by` microseconds to the error of the clock.
    pub(super) fn run_wild(&self, by: i64) {
        let mut state = self.state();
        if !state.faults_ended {
            state.wild += by;
            state.stepped(by);
        }
    }

    /// Removes the additional error of the clock for the rest of the run.
    pub(super) fn mend(&self) {
        let mut state = self.state();
        let wild = state.wild;
        state.stepped(-wild);
        (state.wild, state.faults_ended) = (0, true);
    }

    /// Returns the sum of all backward steps of the clock, in microseconds.
    pub(super) fn set_back(&self) -> u64 {
        self.state().set_back
    }
}

impl ClockState {
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
