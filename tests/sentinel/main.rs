//! Nodes that are Sentinel groups: choice of the server, failovers, required settings, and
//! Sentinels that send false information.

mod credentials;
#[path = "../../benches/pair/delay.rs"]
mod delay;
mod failover_outlived;
mod failover_window;
mod frozen_master;
mod late_request;
mod lying;
mod min_replicas;
mod node;
mod promoted;
mod replicas;
mod reset;
mod returning;
mod stale;
#[path = "../support/mod.rs"]
mod support;
mod trips;
mod unasked;
