//! A simulated client process. All its tasks start through its `Env`, and stop, continue or die
//! together. Its clock continues while it is stopped, because it includes suspended time.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use palisade::Moment;
use palisade::node::spi::{Env, Task};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use crate::dice::Dice;
use crate::plan::ClockPlan;

/// A process with its own clocks and its own random numbers.
#[derive(Debug)]
pub(crate) struct Process {
    start: Instant,
    clock: ClockPlan,
    dice: Mutex<Dice>,
    /// True if each attempt of the process gets the same owner token. This is a known bug outside
    /// the library.
    stuck_dice: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    dead: bool,
    /// Time by which the library's tasks continue later than the user's tasks after a stop. The
    /// cause is that tokio's timers do not advance during a stop.
    lag: Duration,
    sleepers: Vec<Waker>,
    tasks: Vec<AbortHandle>,
    /// True time at which the process last continued, in nanoseconds.
    resumed: u64,
    /// Total time for which the process was stopped, in nanoseconds.
    lost: u64,
    stopped_at: u64,
}

impl Process {
    pub(crate) fn new(start: Instant, clock: ClockPlan, dice: Dice, stuck_dice: bool) -> Arc<Self> {
        let (dice, state) = (Mutex::new(dice), Mutex::default());
        Arc::new(Self { start, clock, dice, stuck_dice, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn true_nanos(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    pub(crate) fn run(
        self: &Arc<Self>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        self.start_task(Box::pin(task), false)
    }

    fn start_task(self: &Arc<Self>, task: Task, library: bool) -> JoinHandle<()> {
        let mut state = self.state();
        if state.dead {
            return tokio::spawn(async {});
        }
        let gate = Gate { process: Arc::clone(self), task, library, lag: None };
        let handle = tokio::spawn(gate);
        if state.tasks.len() >= 64 {
            state.tasks.retain(|t| !t.is_finished());
        }
        state.tasks.push(handle.abort_handle());
        handle
    }

    pub(crate) fn stop(&self) {
        let now = self.true_nanos();
        let mut state = self.state();
        if !state.stopped {
            state.stopped = true;
            state.stopped_at = now;
        }
    }

    /// Continues the process. The library's tasks continue `lag` later than the user's tasks.
    pub(crate) fn resume(&self, lag: Duration) {
        let now = self.true_nanos();
        let mut state = self.state();
        if state.stopped {
            state.stopped = false;
            state.lag = lag;
            state.resumed = now;
            state.lost += now - state.stopped_at + lag.as_nanos() as u64;
        }
        let sleepers = std::mem::take(&mut state.sleepers);
        drop(state);
        for s in sleepers {
            s.wake();
        }
    }

    /// Kills the process. None of its tasks runs again, and it releases no lease.
    pub(crate) fn kill(&self) {
        let mut state = self.state();
        state.dead = true;
        let tasks = std::mem::take(&mut state.tasks);
        drop(state);
        for t in tasks {
            t.abort();
        }
    }

    /// Returns two true times in nanoseconds. The first is the time at which all tasks of the
    /// process, including the library's tasks, last continued. The second is the total time of all
    /// pauses.
    pub(crate) fn stood_still(&self) -> (u64, u64) {
        let state = self.state();
        (state.resumed + state.lag.as_nanos() as u64, state.lost)
    }
}

impl Env for Gated {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.clock.local(self.0.true_nanos()))
    }

    fn wall_micros(&self) -> u64 {
        self.0.clock.wall_micros(self.0.true_nanos())
    }

    fn random(&self) -> u128 {
        let mut dice = self.0.dice.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.stuck_dice {
            return u128::from(dice.clone().next());
        }
        u128::from(dice.next()) << 64 | u128::from(dice.next())
    }

    fn spawn(&self, _: &Handle, task: Task) -> JoinHandle<()> {
        self.0.start_task(task, true)
    }
}

/// The `Env` (clock, random numbers and tasks) that the library uses in a simulated process.
#[derive(Clone, Debug)]
pub(crate) struct Gated(pub(crate) Arc<Process>);

/// A task that is polled only while its process is not stopped.
struct Gate {
    process: Arc<Process>,
    task: Task,
    library: bool,
    lag: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Future for Gate {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        {
            let mut state = this.process.state();
            if state.stopped {
                state.sleepers.push(cx.waker().clone());
                if this.library {
                    this.lag = None;
                }
                return Poll::Pending;
            }
            let end = Duration::from_nanos(state.resumed) + state.lag;
            let now = this.process.start.elapsed();
            if this.library && !state.lag.is_zero() && now < end && this.lag.is_none() {
                this.lag = Some(Box::pin(tokio::time::sleep(end.saturating_sub(now))));
            }
        }
        if let Some(lag) = &mut this.lag {
            if lag.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.lag = None;
        }
        this.task.as_mut().poll(cx)
    }
}
