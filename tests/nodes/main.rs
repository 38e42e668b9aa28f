//! Nodes: the contract suite, which every kind of node must pass, and `RedisNode` on real servers.

mod acl;
mod credentials;
#[path = "../../benches/pair/delay.rs"]
mod delay;
mod events;
mod first_day;
mod redis;
#[path = "../support/mod.rs"]
mod support;
