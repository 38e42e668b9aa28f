//! Explores small worlds of palisade to the end: three nodes, two or three clients, and every order
//! in which requests and answers arrive, come late or never, clients die, nodes lose their data and
//! clocks are wrong. The nodes and the machines of the clients are the library's own; what stands
//! around the machines is told again here.

mod bug;
mod client;
mod explore;
mod held;
mod intern;
mod judge;
mod key;
mod lock;
mod spec;
mod text;
mod world;
pub mod worlds;

pub use bug::Bug;
pub use explore::{Explored, Violation, explore};
pub use spec::{CLIENTS, Faults, NODES, Plan, Role, Spec};
