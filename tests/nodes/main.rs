//! Nodes: the contract suite of all node kinds, and `RedisNode` on real servers.

mod acl;
mod events;
mod first_day;
mod redis;
#[path = "../support/mod.rs"]
mod support;
