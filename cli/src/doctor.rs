//! The command `palisade doctor`.

use clap::Args;
use palisade::internal::given;
use palisade_ops::doctor::{Doctor, probe};

use crate::Done;
use crate::codes::Fail;
use crate::settings::{NodesArgs, deployment};
use crate::signals::Signals;

/// Examines a deployment. For each fault that can lose locks, prints the fault, its reason, and the
/// command that corrects the fault.
///
/// This command only reads, with one exception: it acquires and releases a lock with a random name
/// on each node.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    settings: NodesArgs,

    /// Try each feature at this node instead, on keys that are deleted afterwards: whether palisade
    /// works there, works with a setting, or cannot
    #[arg(long, value_name = "URL", conflicts_with_all = ["rights_of", "no_trial"])]
    probe: Option<String>,
    /// ACL user whose rights are checked, if --username is an operator [default: --username]
    #[arg(long, value_name = "NAME", help_heading = "Login")]
    rights_of: Option<String>,

    /// Acquire no lock, and write nothing
    #[arg(long)]
    no_trial: bool,
    /// Print all findings as JSON
    #[arg(long)]
    json: bool,
    /// Exit with 1 after warnings, or with --probe if anything known does not work as it is
    #[arg(long)]
    strict: bool,
}

impl DoctorArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        let (json, strict) = (self.json, self.strict);
        if let Some(url) = self.probe {
            if self.settings.names_nodes() {
                return Err(Fail::from("--probe names its node: leave out --node".to_owned()));
            }
            let mut settings = self.settings.settings()?;
            settings.urls = vec![url];
            let (signals, mut ended) = (Signals::new()?, None);
            let stop = async { ended = Some(signals.next().await) };
            let found = probe::run(&deployment(&settings), stop).await?;
            let text = if json { found.to_json() + "\n" } else { found.to_string() };
            let code = ended.map_or(found.exit_code(strict), |signal| 128 + signal as u8);
            return Ok(Done { text, code });
        }
        let doctor = Doctor::new(self.settings.deployment()?).trial(!self.no_trial);
        let doctor = given(doctor, self.rights_of, Doctor::rights_of);
        let report = doctor.examine().await?;
        let text = if json { report.to_json() + "\n" } else { report.to_string() };
        Ok(Done { text, code: report.exit_code(strict) })
    }
}
