//! What becomes of a job's ticks, counted for the recorder of the `metrics` crate (feature
//! `metrics`). The manual's page `metrics` describes the numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) use export::JobMeters;

use crate::locked;

/// All further jobs share the label [`OTHER`].
const NAMES_MAX: usize = 256;
const OTHER: &str = "(other)";

#[derive(Debug, Default)]
pub(crate) struct Meters(Mutex<BTreeMap<Arc<str>, Arc<JobMeters>>>);

impl Meters {
    pub(crate) fn job(&self, name: &str) -> Arc<JobMeters> {
        let mut all = locked(&self.0);
        let name = if all.len() < NAMES_MAX || all.contains_key(name) { name } else { OTHER };
        Arc::clone(all.entry(name.into()).or_insert_with(|| Arc::new(JobMeters::new(name))))
    }
}

#[cfg(feature = "metrics")]
mod export {
    use metrics::{Counter, Histogram, Key, Label, Level, Metadata, Unit};

    use super::Duration;

    type Metric = (&'static str, &'static str);

    const TICKS: Metric =
        ("palisade_cron_ticks_total", "Ticks that this process came to, by outcome");
    const TICKS_MISSED: Metric = (
        "palisade_cron_ticks_missed_total",
        "Ticks since this process began that it left out because no process was there in time",
    );
    const TICK_LATENESS: Metric =
        ("palisade_cron_tick_lateness_seconds", "How long after its time a tick's run began");
    const RUN: Metric = ("palisade_cron_run_seconds", "How long a tick's run took");

    const OUTCOMES: [&str; 6] = ["done", "failed", "skipped", "cancelled", "again", "parked"];

    static METADATA: Metadata<'static> =
        Metadata::new("palisade", Level::INFO, Some(module_path!()));

    fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
        let label = |(name, value): &(&'static str, &str)| Label::new(*name, (*value).to_owned());
        Key::from_parts(name, labels.iter().map(label).collect::<Vec<_>>())
    }

    fn counter((name, help): Metric, labels: &[(&'static str, &str)]) -> Counter {
        metrics::with_recorder(|r| {
            r.describe_counter(name.into(), Some(Unit::Count), help.into());
            r.register_counter(&key(name, labels), &METADATA)
        })
    }

    fn seconds((name, help): Metric, labels: &[(&'static str, &str)]) -> Histogram {
        metrics::with_recorder(|r| {
            r.describe_histogram(name.into(), Some(Unit::Seconds), help.into());
            r.register_histogram(&key(name, labels), &METADATA)
        })
    }

    #[derive(Debug)]
    pub(crate) struct JobMeters {
        ticks: [(&'static str, Counter); 6],
        missed: Counter,
        lateness: Histogram,
        run: Histogram,
    }

    impl JobMeters {
        pub(crate) fn new(job: &str) -> Self {
            let name = ("name", job);
            let ticks = |outcome| (outcome, counter(TICKS, &[("outcome", outcome), name]));
            Self {
                ticks: OUTCOMES.map(ticks),
                missed: counter(TICKS_MISSED, &[name]),
                lateness: seconds(TICK_LATENESS, &[name]),
                run: seconds(RUN, &[name]),
            }
        }

        pub(crate) fn tick(&self, outcome: &str) {
            if let Some((_, counter)) = self.ticks.iter().find(|(name, _)| *name == outcome) {
                counter.increment(1);
            }
        }

        pub(crate) fn missed(&self, n: u64) {
            self.missed.increment(n);
        }

        /// The run began `late` after its tick, and lasted `took`.
        pub(crate) fn ran(&self, late: Duration, took: Duration) {
            self.lateness.record(late.as_secs_f64());
            self.run.record(took.as_secs_f64());
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod export {
    use super::Duration;

    #[derive(Debug)]
    pub(crate) struct JobMeters;

    #[expect(clippy::unused_self, reason = "as with the feature")]
    impl JobMeters {
        pub(crate) fn new(_: &str) -> Self {
            Self
        }

        pub(crate) fn tick(&self, _: &str) {}

        pub(crate) fn missed(&self, _: u64) {}

        pub(crate) fn ran(&self, _: Duration, _: Duration) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_jobs_do_not_grow_without_bound() {
        let meters = Meters::default();
        for n in 0..10 * NAMES_MAX {
            meters.job(&format!("tenant-{n}"));
        }
        let all = locked(&meters.0);
        assert_eq!(all.len(), NAMES_MAX + 1);
        assert!(all.contains_key(OTHER) && all.contains_key("tenant-0"));
    }
}
