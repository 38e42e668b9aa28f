//! The manual: what code alone does not say.

#[doc = include_str!("ordinary_deployments.md")]
pub mod ordinary_deployments {}

#[doc = include_str!("durability.md")]
pub mod durability {}

#[doc = include_str!("what_a_failover_can_do.md")]
pub mod what_a_failover_can_do_to_you {}

#[doc = include_str!("how_this_is_tested.md")]
pub mod how_this_is_tested {}

#[doc = include_str!("changing_settings.md")]
pub mod changing_settings {}

#[doc = include_str!("troubleshooting.md")]
pub mod troubleshooting {}

#[doc = include_str!("testing.md")]
pub mod testing {}
