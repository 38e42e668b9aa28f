//! Tests of locks: acquiring, holding, renewing, losing, releasing, closing.

mod ahead;
mod cancel;
mod close;
mod crowded;
mod defects;
mod degrade;
mod end;
mod hand_over;
mod logs;
mod multi;
mod mutex;
mod node_queue;
mod readers;
mod reentrant;
mod review;
mod run;
mod runtimes;
#[path = "../support/mod.rs"]
mod support;
mod taken;
mod turns;
