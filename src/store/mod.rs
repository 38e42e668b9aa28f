//! Rules on real servers: a server executes conditional writes, and knows none of the rules. What
//! is to be written follows from the rule and from what the client believes to be there; what the
//! server shows goes to the same rule.

pub(crate) mod beliefs;
pub(crate) mod lock;
mod lock_steps;
#[cfg(test)]
mod lock_tests;
pub(crate) mod locks;
pub(crate) mod operator;
pub(crate) mod planned;
pub(crate) mod record;
pub(crate) mod records;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod twin;
#[cfg(test)]
mod twin_queue;
pub(crate) mod write;
