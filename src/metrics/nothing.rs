//! As `export.rs`, without the feature `metrics`: exports nothing.

use super::Metric;

#[derive(Debug, Default)]
pub(crate) struct Counter;

impl Counter {
    pub(crate) fn new(_: &Metric, _: &[(&'static str, &str)]) -> Self {
        Self
    }

    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn add(&self, _: u64) {}
}

#[derive(Debug, Default)]
pub(crate) struct Gauge;

#[expect(clippy::unused_self, reason = "as with the feature")]
impl Gauge {
    pub(crate) fn new(_: &Metric, _: &[(&'static str, &str)]) -> Self {
        Self
    }

    pub(crate) fn add(&self, _: f64) {}

    pub(crate) fn set(&self, _: f64) {}
}

#[derive(Debug)]
pub(crate) struct Histogram;

impl Histogram {
    pub(crate) fn new(_: &Metric, _: &[(&'static str, &str)]) -> Self {
        Self
    }

    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn record(&self, _: f64) {}
}
