//! Tests of locks.

mod ahead;
mod cancel;
mod close;
mod crowded;
mod defects;
mod degrade;
mod end;
mod logs;
mod mutex;
mod node_queue;
mod readers;
mod reentrant;
mod review;
mod run;
mod runtimes;
mod semaphores;
#[path = "../support/mod.rs"]
mod support;
mod taken;
mod turns;
