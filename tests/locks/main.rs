//! Tests of locks.

mod ahead;
mod cancel;
mod close;
mod crowded;
mod defects;
mod degrade;
mod end;
mod fair;
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
mod semaphores;
#[path = "../support/mod.rs"]
mod support;
mod taken;
mod turns;
