//! The final report of the example `orders`: a table for people, a line of JSON for programs, and
//! the result of the checks.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::consumer::Shift;
use crate::faults::{Endured, Survived};
use crate::stream::Level;

/// Times at which orders were completed, measured from the start of the run.
#[derive(Debug)]
pub struct Pulse {
    start: Instant,
    beats: Mutex<Vec<Duration>>,
}

impl Pulse {
    pub fn new() -> Self {
        Self { start: Instant::now(), beats: Mutex::default() }
    }

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Records that an order was completed now.
    pub fn beat(&self) {
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        beats.push(self.start.elapsed());
    }

    /// Returns the longest interval between two completed orders, among the intervals that overlap
    /// the time between `from` and `to`.
    pub fn longest_gap(&self, from: Duration, to: Duration) -> Duration {
        let beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let before = beats.partition_point(|b| *b < from).saturating_sub(1);
        let inside = beats[before..].iter().take_while(|b| **b < to).copied();
        let mut last = beats.get(before).copied().unwrap_or(from).min(from);
        let mut gap = Duration::ZERO;
        for beat in inside.chain([to]) {
            gap = gap.max(beat.saturating_sub(last));
            last = beat;
        }
        gap
    }
}

#[derive(Debug, Serialize)]
pub struct Report {
    seed: u64,
    request: Request,
    business: Business,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    faults: Option<Vec<Fault>>,
}

/// The line of `--demo-cluster`. Doubles and lost orders are those of both levels.
#[derive(Debug, Serialize)]
pub struct ClusterReport {
    orders: usize,
    executed: usize,
    doubles: usize,
    lost: usize,
    failovers: usize,
    slots_moved: usize,
    held_twice: u64,
}

impl ClusterReport {
    pub fn new(request: &Shift, business: &Shift, endured: &Endured) -> Self {
        let (r, b) = (request.audit(), business.audit());
        Self {
            orders: request.stream.orders.len(),
            executed: r.executed,
            doubles: r.doubles + b.doubles,
            lost: r.lost + b.lost,
            failovers: endured.failovers,
            slots_moved: endured.slots_moved,
            held_twice: endured.held_twice,
        }
    }
}

#[derive(Debug, Serialize)]
struct Request {
    delivered: u64,
    executed: usize,
    replayed: u64,
    doubles: usize,
    lost: usize,
}

#[derive(Debug, Serialize)]
struct Business {
    executed: usize,
    refused: usize,
    doubles: usize,
    lost: usize,
}

#[derive(Debug, Serialize)]
struct Fault {
    kind: &'static str,
    group: String,
    at_s: f64,
    cost_ms: u64,
}

impl Report {
    pub fn new(
        seed: u64,
        request: &Shift,
        business: &Shift,
        elapsed: Duration,
        endured: Option<&Endured>,
    ) -> Self {
        let (r, b) = (request.audit(), business.audit());
        let fault = |s: &Survived| Fault {
            kind: s.kind,
            group: s.group.clone(),
            at_s: tenths(s.at),
            cost_ms: s.gap.as_millis() as u64,
        };
        Self {
            seed,
            request: Request {
                delivered: request.stream.delivered(),
                executed: r.executed,
                replayed: request.counts.replayed.get(),
                doubles: r.doubles,
                lost: r.lost,
            },
            business: Business {
                executed: b.executed,
                refused: business.refused(),
                doubles: b.doubles,
                lost: b.lost,
            },
            seconds: tenths(elapsed),
            faults: endured.map(|e| e.faults.iter().map(fault).collect()),
        }
    }
}

/// Returns a report as one line of JSON.
pub fn json(report: &impl Serialize) -> String {
    serde_json::to_string(report).expect("numbers and texts are always JSON")
}

/// Prints the table of one level (the rule that decides if two deliveries are of the same order).
pub fn print_level(shift: &Shift) {
    let (audit, counts) = (shift.audit(), &shift.counts);
    let (title, what) = match shift.stream.level {
        Level::Request => ("request level", "key = invoice number"),
        Level::Business => ("business level", "key = customer, day, total"),
    };
    println!("\n{title} ({what})");
    let row = |n: u64, text: &str| println!("{n:>9}  {text}");
    row(shift.stream.delivered(), "deliveries");
    row(counts.replayed.get(), "answered from the record");
    row(counts.in_flight.get(), "put back, for another consumer was at work on the order");
    row(counts.crashed_before.get(), "consumers died before the effect");
    row(counts.crashed_after.get(), "consumers died between the effect and its record");
    row(counts.stalled.get(), "consumers stalled beyond their lease");
    row(counts.trouble.get(), "put back, for too few nodes could be asked or the lease was lost");
    row(audit.probes, "times the ledger was asked what became of an order");
    row(audit.old_tokens, "late bookings refused by the ledger for their old token");
    if shift.stream.level == Level::Business {
        row(shift.refused() as u64, "invoices refused as the same order once more");
    }
    row(audit.executed as u64, "orders took effect, says the ledger");
    row(audit.doubles as u64, "twice");
    row(audit.lost as u64, "never");
}

/// Prints the cost of each fault.
pub fn print_faults(faults: &[Survived]) {
    println!("\nfaults");
    for f in faults {
        println!(
            "{:7.1} s  {:8} {}: voted again after {:.1} s; longest time without an order {} ms",
            f.at.as_secs_f64(),
            f.kind,
            f.group,
            f.away.as_secs_f64(),
            f.gap.as_millis()
        );
    }
}

fn tenths(d: Duration) -> f64 {
    (d.as_secs_f64() * 10.0).round() / 10.0
}
