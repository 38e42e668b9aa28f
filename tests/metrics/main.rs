//! Metrics and spans, as a program that collects both receives them.
#![allow(clippy::float_cmp, reason = "what is compared are whole numbers")]

mod counts;
mod recorder;
mod spans;
mod table;
mod world;
