#![doc = include_str!("../README.md")]

pub mod contract;
pub mod crash;
pub mod delivery;
pub mod fault;
