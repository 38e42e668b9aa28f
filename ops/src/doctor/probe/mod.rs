//! Says whether an endpoint can be a node: tries each command and each script of palisade there, on
//! keys of its own, and says of each feature whether it works, works with a setting, or cannot.
//!
//! A verdict follows from a trial, and never from a name. What is known of services by other means,
//! [`services`], stands beside the verdicts.
//!
//! ```no_run
//! # async fn demo() -> Result<(), palisade::error::ConfigError> {
//! use palisade_ops::{Deployment, doctor::probe};
//! let endpoint = Deployment::new().node("rediss://cache.example:6379");
//! println!("{}", probe::run(&endpoint, std::future::pending()).await?);
//! # Ok(()) }
//! ```

mod door;
mod endpoint;
mod report;
mod services;
mod trials;

use palisade::ConfigError;

pub use self::report::{Ability, Feature, Probe};
pub use self::services::{Service, services};
use super::super::Deployment;

/// Tries all features on the node of the deployment, until the trials or `stop` ends, and deletes
/// the keys of the probe.
///
/// All keys begin with `palisade:probe:` and a random number. Marker, note and the keys of others
/// are not written to. A server that answers nothing costs at most about twenty time-outs of the
/// deployment.
///
/// # Errors
/// [`ConfigError`] if the settings are invalid, or there are several nodes. Faults of the endpoint
/// are in the report.
///
/// # Cancellation safety
/// If the future is dropped, keys of the probe remain for a minute. Its marker and note remain for
/// ever if that is while a trial is under way. End `stop` instead.
pub async fn run(
    deployment: &Deployment,
    stop: impl Future<Output = ()>,
) -> Result<Probe, ConfigError> {
    let access = deployment.access()?;
    let node = endpoint::Node::find(deployment, &access).await?;
    let (features, service) = (node.probe(stop).await, services::of(&node.url));
    Ok(Probe::new(&node.subject, &node.url, service, features, &access.secrets()))
}
