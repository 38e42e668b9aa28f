//! Many seeds over all cores, and the story of the one that failed.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::invariants::Violation;
use crate::plan::{Plan, Tamper};
use crate::run::{Report, run};

/// A run that broke a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which one.
    pub seed: u64,
    /// What it broke.
    pub violation: Violation,
}

/// What came of many seeds.
#[derive(Clone, Debug)]
pub struct Sum {
    /// How many were run.
    pub seeds: u64,
    /// The failing seed with the smallest number, if any failed.
    pub failure: Option<Failure>,
}

/// How to run them.
pub struct Soak<'a> {
    /// The first seed.
    pub first: u64,
    /// How many.
    pub seeds: u64,
    /// Threads.
    pub jobs: usize,
    /// Called on each thread before it starts.
    pub prepare: &'a (dyn Fn() + Sync),
    /// Called after each seed.
    pub tick: &'a (dyn Fn() + Sync),
    /// Only every so many: the last three bits of a seed say what it is about.
    pub step: u64,
    /// Change every plan: for bugs that live outside the library.
    pub tamper: Option<Tamper>,
}

impl Soak<'_> {
    /// Runs until a seed fails or all are done.
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

/// The hash of a seed's trace, and what it broke.
pub fn fingerprint(seed: u64) -> (u64, Option<Violation>) {
    let report = run(Plan::of(seed));
    (report.hash, report.violation)
}

/// Runs a seed, shrinks its plan while it still breaks the same promise, and prints what happened.
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
