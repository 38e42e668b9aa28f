//! `ClusterNode` on real clusters whose slots move and whose masters fail.

#[path = "../support/mod.rs"]
mod support;

mod contract;
mod failures;
mod moves;
mod views;
mod waits;
