//! For those who operate the nodes: begin a deployment, look after it, hand a server over.
//!
//! Operations use the library as its users do, by its public names, and connections of their own.

pub mod doctor;

mod deployment;
mod facts;
mod gather;
mod handover;
mod init;
mod login;
mod masters;
mod promotion;
mod records;
mod script;

pub use self::deployment::Deployment;
pub use self::handover::{HandedOver, Handover};
pub use self::init::{Init, Initialised, init};
pub use self::records::{
    Audit, Change, KeyChange, KeyFacts, KeyList, KeyState, NodeChange, Purge, Purged, Records,
    Select, resolve,
};
