//! For whoever operates the nodes: is the deployment as it should be?
//!
//! Operations use the library as its users do, by its public names, and connections of their own.

pub mod doctor;
