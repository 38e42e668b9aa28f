//! Operating the nodes: initialise a deployment, examine it, hand a server over.
//!
//! Operations use the public interface of the library, and connections of their own.

pub mod doctor;

mod deployment;
mod facts;
mod gather;
mod handover;
mod held;
mod incidents;
mod init;
mod login;
mod marker;
mod masters;
mod nodes;
mod promotion;
mod records;
mod script;

pub use self::deployment::Deployment;
pub use self::handover::{HandedOver, Handover};
pub use self::held::{Held, HeldList, held};
pub use self::incidents::{DecidedLoss, Incident, Incidents, NodeLoss, incidents};
pub use self::init::{Init, Initialised, init, init_lost};
pub use self::nodes::{KeptData, NodeData, nodes};
pub use self::records::{
    Audit, Change, KeyChange, KeyFacts, KeyList, KeyState, NodeChange, Purge, Purged, Records,
    Select, namespaces, resolve,
};
