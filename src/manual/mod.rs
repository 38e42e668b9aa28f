//! The manual: what code alone does not tell.

#[doc = include_str!("how_this_is_tested.md")]
pub mod how_this_is_tested {}
