//! Metrics and spans, checked by a recorder and a subscriber in the test program.
#![allow(clippy::float_cmp, reason = "what is compared are whole numbers")]

mod counts;
mod recorder;
mod spans;
mod table;
mod world;
