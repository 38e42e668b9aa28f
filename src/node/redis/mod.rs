//! A standalone Redis (or Valkey) server as a node.
pub(crate) mod endpoint;
pub(crate) mod faults;
pub(crate) mod session;
