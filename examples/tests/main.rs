//! Tests that run the examples as a user runs them.

mod candidate;
mod election;
mod holders;
mod program;
mod programs;
mod support;
