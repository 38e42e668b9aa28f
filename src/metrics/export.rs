//! Counters, gauges and histograms for the recorder of the `metrics` crate. Compiled with the
//! feature `metrics`.

use metrics::{Key, Label, Level, Metadata, SharedString};

use super::Metric;
use super::table::{Kind, Unit};

static METADATA: Metadata<'static> = Metadata::new("palisade", Level::INFO, Some(module_path!()));

fn key(metric: &Metric, labels: &[(&'static str, &str)]) -> Key {
    let label = |(name, value): &(&'static str, &str)| Label::new(*name, (*value).to_owned());
    Key::from_parts(metric.name, labels.iter().map(label).collect::<Vec<_>>())
}

/// A number that only grows.
#[derive(Debug)]
pub(crate) struct Counter(metrics::Counter);

impl Default for Counter {
    fn default() -> Self {
        Self(metrics::Counter::noop())
    }
}

impl Counter {
    pub(crate) fn new(metric: &Metric, labels: &[(&'static str, &str)]) -> Self {
        let key = key(metric, labels);
        Self(metrics::with_recorder(|r| r.register_counter(&key, &METADATA)))
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.increment(n);
    }
}

/// A number that grows and shrinks.
#[derive(Debug)]
pub(crate) struct Gauge(metrics::Gauge);

impl Default for Gauge {
    fn default() -> Self {
        Self(metrics::Gauge::noop())
    }
}

impl Gauge {
    pub(crate) fn new(metric: &Metric, labels: &[(&'static str, &str)]) -> Self {
        let key = key(metric, labels);
        Self(metrics::with_recorder(|r| r.register_gauge(&key, &METADATA)))
    }

    pub(crate) fn add(&self, by: f64) {
        self.0.increment(by);
    }

    pub(crate) fn set(&self, to: f64) {
        self.0.set(to);
    }
}

/// Distribution of a value.
#[derive(Debug)]
pub(crate) struct Histogram(metrics::Histogram);

impl Histogram {
    pub(crate) fn new(metric: &Metric, labels: &[(&'static str, &str)]) -> Self {
        let key = key(metric, labels);
        Self(metrics::with_recorder(|r| r.register_histogram(&key, &METADATA)))
    }

    pub(crate) fn record(&self, value: f64) {
        self.0.record(value);
    }
}

/// Sends the unit and the help text of each metric to the recorder.
pub(super) fn describe(all: &[&Metric]) {
    metrics::with_recorder(|r| {
        for metric in all {
            let unit = match metric.unit {
                Unit::Count => Some(metrics::Unit::Count),
                Unit::Seconds => Some(metrics::Unit::Seconds),
                // The `metrics` crate has no unit for ratios.
                Unit::Ratio => None,
            };
            let (name, help) =
                (SharedString::const_str(metric.name), SharedString::const_str(metric.help));
            match metric.kind {
                Kind::Counter => r.describe_counter(name.into(), unit, help),
                Kind::Gauge => r.describe_gauge(name.into(), unit, help),
                Kind::Histogram => r.describe_histogram(name.into(), unit, help),
            }
        }
    });
}
