//! The option `--metrics`: the HTTP pages with the metrics, the clients that request these pages,
//! and the results in a real Prometheus.

mod alerts;
mod application;
mod endpoint;
#[path = "../verbs/ground.rs"]
#[allow(dead_code, reason = "shared with the tests of verbs, which use all of it")]
mod ground;
mod prometheus;
mod scrape;
#[path = "../../../tests/support/mod.rs"]
mod support;
