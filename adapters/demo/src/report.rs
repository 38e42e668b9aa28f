//! The result of a run of the demo: a table for people, and one line of JSON for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum as _;
use serde::Serialize;

use crate::books::Audit;
use crate::brokers::Dead;
use crate::child::DieAt;
use crate::fleet::FleetCounts;
use crate::invoices::Plan;
use crate::ledger::Ledger;

#[derive(Debug, Serialize)]
struct Line {
    broker: &'static str,
    delivered: u64,
    executed: usize,
    doubles: usize,
    lost: usize,
    dead_letters: usize,
}

pub(crate) struct Report {
    broker: &'static str,
    audit: Audit,
    counts: FleetCounts,
    /// Number of dead letters of each key, and the reason of its last dead letter.
    dead: BTreeMap<String, (usize, String)>,
    poison: Vec<String>,
    published: usize,
}

impl Report {
    pub(crate) fn new(
        broker: &'static str,
        plan: &Plan,
        ledger: &Ledger,
        letters: &[Dead],
        counts: &FleetCounts,
    ) -> Self {
        let mut dead = BTreeMap::new();
        for letter in letters {
            let entry = dead.entry(letter.key.clone()).or_insert((0, String::new()));
            *entry = (entry.0 + 1, letter.reason.clone());
        }
        let mut poison: Vec<String> = plan.poison.iter().map(ToString::to_string).collect();
        poison.sort();
        let audit = ledger.audit(&plan.keys);
        let published = plan.messages.len() + plan.forgeries.len();
        Self { broker, audit, counts: *counts, dead, poison, published }
    }

    /// Returns true if every order was booked exactly once, a consumer died at each crash point,
    /// and the dead letters are exactly the messages that had to become dead letters.
    pub(crate) fn is_good(&self) -> bool {
        let dead: Vec<_> = self.dead.keys().cloned().collect();
        let kept = self.audit.doubles == 0 && self.audit.lost == 0 && dead == self.poison;
        kept && self.counts.is_hard()
    }

    pub(crate) fn print(&self, unacknowledged: usize, elapsed: Duration, seed: u64) {
        let row = |n: u64, text: &str| println!("{n:>9}  {text}");
        println!();
        row(self.published as u64, "messages published");
        row(self.counts.delivered, "deliveries to consumers");
        row(self.counts.killed, "consumers killed at random");
        for (at, died) in DieAt::value_variants().iter().zip(self.counts.died) {
            row(died, &format!("consumers that died at the crash point {at:?}"));
        }
        row(self.audit.probes, "times the ledger was asked what became of an order");
        row(self.audit.old_tokens, "late bookings refused by the ledger for their old token");
        row(self.audit.executed as u64, "orders took effect, says the ledger");
        row(self.audit.doubles as u64, "twice");
        row(self.audit.lost as u64, "never");
        row(unacknowledged as u64, "messages left unacknowledged");
        for (key, (times, reason)) in &self.dead {
            let seeded = if self.poison.contains(key) { "seeded poison" } else { "NOT SEEDED" };
            println!("{times:>9}  dead letter {key}: {reason} ({seeded})");
        }
        let good = self.is_good() && unacknowledged == 0;
        let verdict = match (good, self.counts.is_hard()) {
            (true, _) => "every order exactly once",
            (false, true) => "PROMISE BROKEN",
            (false, false) => "NOT A TRIAL: no process died at a crash point, or at random",
        };
        println!("\n{verdict}; {:.1} s, --seed {seed}", elapsed.as_secs_f64());
        let line = Line {
            broker: self.broker,
            delivered: self.counts.delivered,
            executed: self.audit.executed,
            doubles: self.audit.doubles,
            lost: self.audit.lost,
            dead_letters: self.dead.len(),
        };
        println!("{}", serde_json::to_string(&line).expect("numbers and texts are JSON"));
    }
}
