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

#[doc = concat!("[clocks]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/design/clocks.md")]
#[doc = concat!(
    "[durability]: ",
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/main/docs/design/durability.md"
)]
#[doc = concat!("[election]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/design/election.md")]
#[doc = concat!(
    "[idempotency]: ",
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/main/docs/design/idempotency.md"
)]
#[doc = concat!("[fair]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/design/fair.md")]
#[doc = concat!("[locks]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/design/locks.md")]
#[doc = concat!("[multi]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/design/multi_lock.md")]
#[doc = concat!(
    "[quarantine]: ",
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/main/docs/design/quarantine.md"
)]
#[doc = concat!(
    "[semaphore]: ",
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/main/docs/design/semaphore.md"
)]
#[doc = concat!("[readers]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/design/readers.md")]
#[doc = concat!("[renewal]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/design/renewal.md")]
#[doc = concat!("[sentinel]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/design/sentinel.md")]
#[doc = include_str!("../../docs/glossary.md")]
pub mod glossary {}
