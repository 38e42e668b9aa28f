//! Numbers for the recorder of the `metrics` crate. Compiled with the feature `metrics`.

use metrics::{Key, Label, Level, Metadata, SharedString};

use super::Metric;
use super::table::Unit;

static METADATA: Metadata<'static> = Metadata::new("palisade", Level::INFO, Some(module_path!()));

fn key(metric: &Metric, labels: &[(&'static str, &str)]) -> Key {
    let label = |(name, value): &(&'static str, &str)| Label::new(*name, (*value).to_owned());
    Key::from_parts(metric.name, labels.iter().map(label).collect::<Vec<_>>())
}

impl Metric {
    fn unit(&self) -> Option<metrics::Unit> {
        match self.unit {
            Unit::Count => Some(metrics::Unit::Count),
            Unit::Seconds => Some(metrics::Unit::Seconds),
            Unit::Ratio => None,
        }
    }

    fn help(&self) -> SharedString {
        SharedString::const_str(self.help)
    }
}

#[derive(Debug)]
pub(crate) struct Counter(metrics::Counter);

impl Default for Counter {
    fn default() -> Self {
        Self(metrics::Counter::noop())
    }
}

impl Counter {
    pub(crate) fn new(metric: &Metric, labels: &[(&'static str, &str)]) -> Self {
        Self(metrics::with_recorder(|r| {
            r.describe_counter(metric.name.into(), metric.unit(), metric.help());
            r.register_counter(&key(metric, labels), &METADATA)
        }))
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.increment(n);
    }
}

#[derive(Debug)]
pub(crate) struct Gauge(metrics::Gauge);

impl Default for Gauge {
    fn default() -> Self {
        Self(metrics::Gauge::noop())
    }
}

impl Gauge {
    pub(crate) fn new(metric: &Metric, labels: &[(&'static str, &str)]) -> Self {
        Self(metrics::with_recorder(|r| {
            r.describe_gauge(metric.name.into(), metric.unit(), metric.help());
            r.register_gauge(&key(metric, labels), &METADATA)
        }))
    }

    pub(crate) fn add(&self, by: f64) {
        self.0.increment(by);
    }

    pub(crate) fn set(&self, to: f64) {
        self.0.set(to);
    }
}

#[derive(Debug)]
pub(crate) struct Histogram(metrics::Histogram);

impl Histogram {
    pub(crate) fn new(metric: &Metric, labels: &[(&'static str, &str)]) -> Self {
        Self(metrics::with_recorder(|r| {
            r.describe_histogram(metric.name.into(), metric.unit(), metric.help());
            r.register_histogram(&key(metric, labels), &METADATA)
        }))
    }

    pub(crate) fn record(&self, value: f64) {
        self.0.record(value);
    }
}
