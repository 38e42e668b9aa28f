//! `palisade doctor`.

use std::time::Duration;

use clap::Args;
use palisade_ops::doctor::Doctor;

use crate::access::{AccessArgs, Sets, seconds};
use crate::{Done, block_on};

/// Examines a deployment: what would lose locks, why, and the command that corrects it.
///
/// Reads only, except for a lock with a random name that it acquires and releases on each node.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    access: AccessArgs,

    /// ACL user whose rights are checked, if --user is an operator [default: --user]
    #[arg(long, value_name = "NAME", help_heading = "Login")]
    rights_of: Option<String>,

    /// The application's `max_ttl` in seconds, if it is not the library's default of 15
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    max_ttl: Option<Duration>,
    /// The application's `clock_error` in seconds, if it is not the library's default
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    clock_error: Option<Duration>,
    /// The application's `min_replicas(_, SECONDS)`, if it sets that
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    max_lag: Option<Duration>,
    /// Acquire no lock: write nothing anywhere
    #[arg(long)]
    no_trial: bool,
    /// Print all findings as JSON
    #[arg(long)]
    json: bool,
    /// Exit with 1 after warnings
    #[arg(long)]
    strict: bool,
}

impl DoctorArgs {
    pub(crate) fn run(self, sets: Sets) -> Result<Done, String> {
        let (json, strict) = (self.json, self.strict);
        let mut doctor = Doctor::new(self.access.deployment(sets)?).trial(!self.no_trial);
        if let Some(name) = self.rights_of {
            doctor = doctor.rights_of(name);
        }
        if let Some(max_ttl) = self.max_ttl {
            doctor = doctor.max_ttl(max_ttl);
        }
        if let Some(error) = self.clock_error {
            doctor = doctor.clock_error(error);
        }
        if let Some(max_lag) = self.max_lag {
            doctor = doctor.max_lag(max_lag);
        }
        let report = block_on(doctor.examine())?.map_err(|e| e.to_string())?;
        let text = if json { report.to_json() + "\n" } else { report.to_string() };
        Ok(Done { text, code: report.exit_code(strict) })
    }
}
