//! Runs simulations with many seeds on all cores, and prints the history of a seed that failed.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::invariants::Violation;
use crate::plan::{Plan, Tamper};
use crate::run::{Report, run};

/// A run that broke a rule.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Seed of the run.
    pub seed: u64,
    /// Rule that the run broke.
    pub violation: Violation,
}

/// Result of a soak: a run of many seeds.
#[derive(Clone, Debug)]
pub struct Sum {
    /// Number of seeds that were run.
    pub seeds: u64,
    /// Failure with the smallest seed, if any seed failed.
    pub failure: Option<Failure>,
}

/// Settings of a soak: a run of many seeds.
pub struct Soak<'a> {
    /// First seed that is run.
    pub first: u64,
    /// Number of seeds.
    pub seeds: u64,
    /// Number of threads.
    pub jobs: usize,
    /// Function that each thread calls before it runs its seeds.
    pub prepare: &'a (dyn Fn() + Sync),
    /// Function that is called after each seed.
    pub tick: &'a (dyn Fn() + Sync),
    /// Difference between two consecutive seeds. The last three bits of a seed select the theme, so
    /// a step of 8 keeps the theme.
    pub step: u64,
    /// Change of each plan, to test a mistake outside of the library or one certain rule.
    pub tamper: Option<Tamper>,
}

impl Soak<'_> {
    /// Runs the simulation with each seed, until one of them fails or all are done.
    ///
    /// # Panics
    /// If a thread cannot be joined.
    pub fn run(&self) -> Sum {
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let (stop, failure) = (AtomicBool::new(false), Mutex::new(None::<Failure>));
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| {
                    (self.prepare)();
                    while !stop.load(Ordering::Relaxed) {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= self.seeds {
                            return;
                        }
                        let seed = self.first + i * self.step;
                        let violation = run(self.plan(seed)).violation;
                        done.fetch_add(1, Ordering::Relaxed);
                        (self.tick)();
                        if let Some(violation) = violation {
                            stop.store(true, Ordering::Relaxed);
                            let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
                            if first.as_ref().is_none_or(|f| f.seed > seed) {
                                *first = Some(Failure { seed, violation });
                            }
                        }
                    }
                });
            }
        });
        let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        Sum { seeds: done.into_inner(), failure }
    }

    fn plan(&self, seed: u64) -> Plan {
        Plan::tampered(seed, self.tamper)
    }
}

/// Returns the hash of a seed's trace, and the violation, if any.
pub fn fingerprint(seed: u64) -> (u64, Option<Violation>) {
    let report = run(Plan::of(seed));
    (report.hash, report.violation)
}

/// Runs a seed. If the run breaks a rule, makes the plan smaller as long as it breaks the same
/// rule. Returns the plan and the history of the run as text.
pub fn story(seed: u64, tamper: Option<Tamper>) -> String {
    let plan = Plan::tampered(seed, tamper);
    let report = run(plan.clone());
    let Some(violation) = &report.violation else {
        return format!(
            "{plan}seed {seed}: nothing broken; trace {:016x}, {} events\n",
            report.hash,
            report.events.len()
        );
    };
    let (plan, report) = crate::shrink::shrink(plan, violation.invariant, report.clone());
    tell(&plan, &report)
}

fn tell(plan: &Plan, report: &Report) -> String {
    let mut out = plan.to_string();
    for (at, event) in &report.events {
        let line = event.to_string();
        if !line.is_empty() {
            let _ = writeln!(out, "{:>9.3} ms  {line}", *at as f64 / 1_000.0);
        }
    }
    if let Some(v) = &report.violation {
        let _ = writeln!(out, "BROKEN: {} ({})\n        {}", v.invariant, v.source, v.what);
    }
    out
}
