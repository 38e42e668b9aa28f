//! Tests of locks.

mod ahead;
mod cancel;
mod case_table;
mod classic;
mod close;
mod crowded;
mod defects;
mod degrade;
mod end;
mod extensions;
mod fair;
mod fair_durable;
mod full;
mod hand_over;
mod logs;
mod many_readers;
mod multi;
mod multi_wait;
mod mutex;
mod node_queue;
mod nodes;
mod permits;
mod readers;
mod reentrant;
mod review;
mod run;
mod runtimes;
mod semaphores;
#[path = "../support/mod.rs"]
mod support;
mod taken;
mod trio;
mod turns;
mod unanswered;
