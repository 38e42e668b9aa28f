#![doc = include_str!("../README.md")]
#![warn(
    clippy::allow_attributes,
    clippy::dbg_macro,
    clippy::iter_over_hash_type,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::todo,
    clippy::unimplemented,
    clippy::unwrap_used
)]

pub mod doctor;

mod backlog;
mod cluster;
mod deployment;
mod facts;
mod gather;
mod handover;
mod held;
mod incidents;
mod init;
mod keys;
mod login;
mod lower;
mod marker;
mod marking;
mod masters;
mod nodes;
mod one_deployment;
mod promotion;
mod records;
mod run_now;
mod scan;
mod script;
mod shared_settings;
mod survey;

#[cfg(test)]
#[expect(dead_code, reason = "the library's fuzz tests use the rest")]
#[path = "../../src/fuzzing.rs"]
mod fuzzing;

pub use self::deployment::Deployment;
pub use self::handover::{HandedOver, Handover};
pub use self::held::{Held, HeldList, held};
pub use self::incidents::{DecidedLoss, Incident, Incidents, NodeLoss, OtherLosses, incidents};
pub use self::init::{Init, Initialised, init, init_lost};
pub use self::lower::{Lower, Lowered, NodeLowered};
pub use self::marker::KeptData;
pub use self::masters::{InMemory, in_memory};
pub use self::nodes::{NodeData, nodes};
pub use self::one_deployment::{OneDeployment, one_deployment};
pub use self::records::{
    Audit, Change, KeyChange, KeyFacts, KeyList, KeyState, NodeChange, Purge, Purged, Records,
    Select, namespaces, resolve,
};
pub use self::run_now::run_now;
pub use self::shared_settings::{NodeSettings, SharedSettings, shared_settings};
pub use self::survey::{Answers, Ask, LockQueue, OfEach, Scanned, Survey, Waiter};
