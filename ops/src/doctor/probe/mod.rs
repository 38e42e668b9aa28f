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
//! println!("{}", probe::run(&endpoint).await?);
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

/// Tries all features on each node of the deployment, one node after the other.
///
/// All keys begin with `palisade:probe:` and a random number, and are deleted in the end. Marker,
/// note and the keys of others are not written to. A node takes at most about twenty time-outs of
/// the deployment.
///
/// # Errors
/// [`ConfigError`] if the settings are invalid. Faults of the endpoint are in the report.
///
/// # Cancellation safety
/// The future may be dropped at any await. Keys of the probe may then remain.
pub async fn run(deployment: &Deployment) -> Result<Probe, ConfigError> {
    let access = deployment.access()?;
    let (mut features, mut services) = (Vec::new(), Vec::new());
    for endpoint in endpoint::all(deployment, &access).await? {
        services.extend(services::of(&endpoint.hosts));
        features.extend(endpoint.probe().await);
    }
    Ok(Probe::new(features, services, &access.secrets()))
}
