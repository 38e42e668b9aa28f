//! The command `palisade run-now`.

use std::time::Duration;

use clap::Args;
use palisade::RunError;
use palisade_cron::{Cron, CronError, End, Requested, Run, RunRequest};
use palisade_ops::run_now;
use serde_json::json;

use super::cron::of_job;
use super::idem::AuditArgs;
use super::{GroundArgs, unavailable};
use crate::Done;
use crate::codes::{Fail, NOT_ACQUIRED, REFUSED, UNAVAILABLE, USAGE};
use crate::say::plain;
use crate::span::{Span, or_zero};

/// Maximum wait for the beginning of the run, if `-w` is not given.
const WAIT: Duration = Duration::from_secs(10);

/// Runs the cron job NAME now, outside of its schedule, on one of the hosts that run it.
///
/// The job must allow it: `palisade cron --on-request`, or `Job::on_request` in a program. The
/// leader of the job looks for requests every two seconds. If the job runs at that moment, the
/// requested run waits for its end. A request that is older than a minute is not run any more. Two
/// requests in the same ten seconds are one.
///
/// Exit code 0 if the run has begun, 2 if the job does not allow requests, 75 if the run has not
/// begun within the wait or if it is not known if the job allows requests, 69 if too few nodes
/// reply. With 69 the request may be stored. The message then has the time before which this
/// command must not be called again.
#[derive(Debug, Args)]
pub(crate) struct RunNowArgs {
    #[command(flatten)]
    ground: GroundArgs,
    /// Name of the job
    name: String,
    /// Name of the `Cron` in the program that runs the job [default: that of `palisade cron`, and
    /// then `cron`, the one of programs that set none]
    #[arg(long, value_name = "NAME")]
    cron: Option<String>,
    #[command(flatten)]
    audit: AuditArgs,
    /// Maximum time to wait for the beginning of the run [default: 10s]
    #[arg(short = 'w', long, value_name = "SPAN", value_parser = or_zero)]
    wait: Option<Span>,
}

impl RunNowArgs {
    pub(crate) async fn run(self) -> Result<Done, Fail> {
        let json = self.ground.say.json;
        let audit = self.audit.audit()?;
        let ground = self.ground.without_signals()?;
        let wait = self.wait.map_or(WAIT, |Span(wait)| wait);
        let names = self.cron.map_or_else(|| vec![of_job(&self.name), "cron".into()], |n| vec![n]);
        let mut requested = Requested::NotAllowed;
        for name in names {
            let cron = Cron::new(&ground.redlock).name(name);
            requested = run_now(&cron, &self.name, wait, &audit).await.map_err(|e| failure(&e))?;
            if requested != Requested::NotAllowed {
                break;
            }
        }
        let (outcome, request, run, code) = match &requested {
            Requested::NotAllowed => ("not_allowed", None, None, REFUSED),
            Requested::Begun { request, is_new, run } => {
                ("begun", Some((request, *is_new)), run.as_ref(), 0)
            }
            Requested::Waits { request, is_new } => {
                ("waits", Some((request, *is_new)), None, NOT_ACQUIRED)
            }
            Requested::NotKnown => {
                let why = "it is not known if the job allows requests, because too few nodes have \
                           the sign of that; no request is stored; call this command again";
                return Err(Fail::new(NOT_ACQUIRED, why));
            }
            Requested::Undecided => {
                let why = "another process requests it at the same time; call this command again";
                return Err(Fail::new(NOT_ACQUIRED, why));
            }
            other => return Err(Fail::new(NOT_ACQUIRED, format!("{other:?}"))),
        };
        let text = if json {
            let (request, is_new) = (request.map(|(one, _)| one), request.map(|(_, new)| new));
            json!({ "name": self.name, "outcome": outcome, "request": request, "is_new": is_new,
                    "run": run })
            .to_string()
        } else {
            let request = request.map(|(one, is_new)| line(one, is_new)).unwrap_or_default();
            let what = match (outcome, run) {
                ("not_allowed", _) => {
                    "it does not allow requests: no leader of it with --on-request was here in the \
                     last day; if its program calls `Cron::name`, give that name by --cron"
                        .to_owned()
                }
                ("begun", Some(run)) => ended(run),
                ("begun", None) => "; it has begun".to_owned(),
                _ => "; no process has begun it yet, and a minute after the request none will"
                    .to_owned(),
            };
            format!("job {:?}: {request}{what}", self.name)
        };
        Ok(Done { text: text + "\n", code })
    }
}

fn failure(error: &CronError) -> Fail {
    match error {
        CronError::Config(_) => Fail::new(USAGE, error.to_string()),
        CronError::Record(RunError::NoQuorum { error, .. }) => unavailable(error),
        // The message contains the time before which another request may run the job twice.
        _ => Fail::new(UNAVAILABLE, error.to_string()),
    }
}

fn line(request: &RunRequest, is_new: bool) -> String {
    let number = request.number;
    if is_new {
        return format!("request {number} is stored");
    }
    format!("request {number} of {} in the same ten seconds stands", plain(&request.by))
}

fn ended(run: &Run) -> String {
    let end = match &run.end {
        End::Done => "done".to_owned(),
        End::Failed(why) => format!("failed: {}", plain(why)),
        other => format!("{other:?}").to_lowercase(),
    };
    format!("; it ran on {}, and is {end}", plain(&run.by))
}

#[cfg(test)]
mod tests {
    use palisade::{MemoryNode, Redlock};
    use palisade_cron::Job;
    use palisade_testing::fault::{Fault, Step};

    use super::*;

    /// Requests a run on a node that loses all replies after a number of requests.
    async fn ask(requests: usize) -> Result<Requested, CronError> {
        let node = Fault::new(MemoryNode::new());
        let control = node.control();
        let redlock = Redlock::builder().node(node).build().unwrap();
        let cron = Cron::new(&redlock);
        let rare = Job::new("job", "0 0 29 2 *").on_request();
        let allows = async {
            while matches!(
                cron.request_run("job", "ann", "", Duration::ZERO).await,
                Ok(Requested::NotAllowed | Requested::NotKnown)
            ) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            ended = cron.run(rare, |_| async { Ok::<_, String>(()) }) => ended.unwrap(),
            () = allows => {}
        }
        let fine = std::iter::repeat_n(Step::fine(), requests);
        control.script(fine.chain(std::iter::repeat_n(Step::lose_reply(), 100)));
        cron.request_run("job", "ann", "", Duration::ZERO).await
    }

    #[tokio::test]
    async fn a_request_that_may_be_run_is_no_wrong_use() {
        let mut is_seen = false;
        for requests in 0..6 {
            let Err(error) = ask(requests).await else { continue };
            let fail = failure(&error);
            assert_eq!(fail.code, UNAVAILABLE, "{error}");
            if let CronError::NotConfirmed { .. } = error {
                is_seen = true;
                assert!(fail.why.contains("do not request the job again"), "{}", fail.why);
            }
        }
        assert!(is_seen);
        let wrong = Cron::new(&Redlock::builder().node(MemoryNode::new()).build().unwrap());
        let wrong = wrong.request_run("", "ann", "", Duration::ZERO).await.unwrap_err();
        assert_eq!(failure(&wrong).code, USAGE);
    }
}
