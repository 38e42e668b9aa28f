//! The rules of a node: what an op makes of the node's data. Pure functions, from the data as they
//! are to a reply and the data as they become. They know no clock, no store and no socket.

pub(crate) mod candidates;
pub(crate) mod header;
pub(crate) mod locks;
pub(crate) mod lost_claims;
pub(crate) mod records;
#[cfg(test)]
pub(crate) mod tests;
