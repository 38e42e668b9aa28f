//! Nodes that are Sentinel groups: which server is asked, what a failover does, which settings a
//! group needs, and Sentinels that lie.

mod failover_outlived;
mod failover_window;
mod frozen_master;
mod late_request;
mod lying;
mod min_replicas;
mod node;
#[path = "../support/mod.rs"]
mod support;
