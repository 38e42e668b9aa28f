//! Tests that run the examples as a user runs them.

mod candidate;
mod election;
mod program;
mod programs;
mod support;
