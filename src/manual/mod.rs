//! The manual: the facts that the code does not show.

#[doc = include_str!("packages.md")]
pub mod packages {}

#[doc = include_str!("compared.md")]
pub mod compared {}

#[doc = include_str!("command.md")]
pub mod command {}

#[doc = include_str!("console.md")]
pub mod console {}

#[doc = include_str!("deployment.md")]
pub mod deployment {}

#[doc = include_str!("services.md")]
pub mod services {}

#[doc = include_str!("promises.md")]
pub mod promises {}

#[doc = include_str!("message_consumer.md")]
pub mod message_consumer {}

#[doc = include_str!("order_endpoint.md")]
pub mod order_endpoint {}

#[doc = include_str!("singleton_cron.md")]
pub mod singleton_cron {}

#[doc = include_str!("locks.md")]
pub mod locks {}

#[doc = include_str!("metrics.md")]
pub mod metrics {}

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

#[doc = include_str!("after_a_loss.md")]
pub mod after_a_loss {}

#[doc = include_str!("troubleshooting.md")]
pub mod troubleshooting {}

#[doc = include_str!("testing.md")]
pub mod testing {}

/// [clocks]: https://github.com/palisade-rs/palisade/blob/main/docs/design/clocks.md
/// [cluster]: https://github.com/palisade-rs/palisade/blob/main/docs/design/cluster.md
/// [durability]: https://github.com/palisade-rs/palisade/blob/main/docs/design/durability.md
/// [election]: https://github.com/palisade-rs/palisade/blob/main/docs/design/election.md
/// [idempotency]: https://github.com/palisade-rs/palisade/blob/main/docs/design/idempotency.md
/// [fair]: https://github.com/palisade-rs/palisade/blob/main/docs/design/fair.md
/// [locks]: https://github.com/palisade-rs/palisade/blob/main/docs/design/locks.md
/// [multi]: https://github.com/palisade-rs/palisade/blob/main/docs/design/multi_lock.md
/// [quarantine]: https://github.com/palisade-rs/palisade/blob/main/docs/design/quarantine.md
/// [semaphore]: https://github.com/palisade-rs/palisade/blob/main/docs/design/semaphore.md
/// [readers]: https://github.com/palisade-rs/palisade/blob/main/docs/design/readers.md
/// [renewal]: https://github.com/palisade-rs/palisade/blob/main/docs/design/renewal.md
/// [sentinel]: https://github.com/palisade-rs/palisade/blob/main/docs/design/sentinel.md
#[doc = include_str!("../../docs/glossary.md")]
pub mod glossary {}
