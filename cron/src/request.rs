//! Requests of operators to run a job now, outside of its schedule.
//!
//! The key of a request's record has the job and a slot of `SLOT` seconds, so two requests in one
//! slot are one. The processes of a job that allows requests read the last slots, and run a tick
//! for each. The leader reads them often, the others seldom, so a request is run without a leader,
//! too.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use futures_util::stream::{Stream, unfold};
use palisade::error::ConfigError;
use palisade::idempotency::{Call, Context, Failed, Outcome, Resolved, RunError, Status};
use palisade::internal::{check_name, without_forgotten_reports};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::keys::Records;
use super::{Cron, CronError, NAMESPACE, Run, tick};

const LOOK: Duration = Duration::from_secs(2);
/// Intervals `LOOK` between two reads by a process that does not lead.
const SELDOM: u32 = 5;
/// In seconds.
pub(super) const SLOT: i64 = 10;
/// In seconds: no run for an older request begins.
pub(super) const LATEST: i64 = 60;
/// Interval in seconds at which a process stores the sign that its job allows requests.
pub(super) const DAY: i64 = 86_400;
const AGAIN: Duration = Duration::from_millis(250);

/// A request to run a job now.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RunRequest {
    /// Random id of the request. It is different for each call that makes a request, even if two
    /// requests have the same number.
    pub id: String,
    /// Number of the request. Two requests in the same ten seconds have one number.
    pub number: i64,
    /// Time of the request in seconds since 1970, by the clock of the process that made the
    /// request.
    pub at: i64,
    /// Person or program that made the request, as the caller named it.
    pub by: String,
    /// Reason for the request, as the caller gave it.
    pub reason: String,
}

impl RunRequest {
    /// Returns the time after which no run for this request begins.
    pub fn until(&self) -> SystemTime {
        tick::at(self.at + LATEST)
    }
}

/// Answer to [`Cron::request_run`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the job may not have been run"]
pub enum Requested {
    /// No process has allowed requests for this job in the last day
    /// ([`Job::on_request`](super::Job::on_request)). No request was stored.
    NotAllowed,
    /// It is not known if a process has allowed requests for this job: such a process stores a
    /// record, and fewer nodes than a majority have this record. No request was stored. Call
    /// [`Cron::request_run`] again.
    NotKnown,
    /// The run of the job for the request has begun or has ended.
    Begun {
        /// The request for which the job was run.
        request: RunRequest,
        /// False if the request was stored by an earlier call in the same ten seconds.
        is_new: bool,
        /// The record of the job's run; `None` if the run has not ended, or was interrupted, or if
        /// its record cannot be read.
        run: Option<Run>,
    },
    /// The request is stored, and the run for it did not begin within the time given as `wait`.
    Waits {
        /// The stored request.
        request: RunRequest,
        /// False if the request was stored by an earlier call in the same ten seconds.
        is_new: bool,
    },
    /// Another process is storing a request of the same ten seconds, and did not finish within the
    /// time given as `wait`. Call [`Cron::request_run`] again.
    Undecided,
}

pub(super) fn slot(at: i64) -> i64 {
    at.div_euclid(SLOT)
}

fn not_confirmed(request: &RunRequest, error: RunError) -> CronError {
    let until = request.until();
    match error {
        RunError::NotRecorded(not) => CronError::NotConfirmed { until, error: not.nodes },
        RunError::NoQuorum { error, .. } => CronError::NotConfirmed { until, error },
        other => other.into(),
    }
}

/// A value that only a minority has is first stored on a majority.
async fn read<T: Serialize + DeserializeOwned>(call: Call) -> Result<Status<T>, RunError> {
    match call.clone().lookup().await? {
        Status::Unsettled => {}
        known => return Ok(known),
    }
    // Called only if no node that answers has the value any more. With an error, no other value is
    // stored.
    let none = |_: Context| async { Err(Failed::no_effect("no node has the value")) };
    match call.in_flight_timeout(Duration::ZERO).run(none).await {
        Ok(Outcome::Executed { value, .. } | Outcome::Replayed(value)) => Ok(Status::Stored(value)),
        Ok(_) | Err(RunError::Handler { .. }) => Ok(Status::Unsettled),
        Err(e) => Err(e),
    }
}

impl Cron {
    /// Requests a run of a job now, outside of its schedule, and waits at most `wait` for its
    /// beginning. The job must allow requests ([`Job::on_request`](super::Job::on_request)) in the
    /// processes that run it. This process need not run the job.
    ///
    /// The leader of the job looks for requests every two seconds, and the other processes every
    /// ten seconds. One tick is run for each request
    /// ([`Tick::is_requested`](super::Tick::is_requested)). If the job runs at that moment, the
    /// tick waits for the end of that run. A request that is older than a minute is not run any
    /// more. Two requests in the same ten seconds of the clock, for example from `:20` to `:29`,
    /// are one request.
    ///
    /// # Errors
    /// [`CronError::Config`] for an invalid name; [`CronError::Record`] if no request was stored,
    /// because too few nodes answered or a record cannot be read; [`CronError::NotConfirmed`] if
    /// too few nodes confirmed the request. In that case the request may be stored, and the job may
    /// be run.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the request may be stored, and the job may be run.
    pub async fn request_run(
        &self,
        job: &str,
        by: &str,
        reason: &str,
        wait: Duration,
    ) -> Result<Requested, CronError> {
        check_name("name", job)?;
        let records = self.requests(job)?;
        let today = self.now().div_euclid(DAY);
        let signs = [today, today - 1].map(|day| read::<bool>(records.sign(day)));
        let signs = join_all(signs).await;
        if !signs.iter().any(|sign| matches!(sign, Ok(Status::Stored(true)))) {
            let signs = signs.into_iter().collect::<Result<Vec<_>, _>>()?;
            let is_open = |sign: &Status<bool>| {
                matches!(sign, Status::Unsettled | Status::Running { .. } | Status::Lapsed { .. })
            };
            let is_known = !signs.iter().any(is_open);
            return Ok(if is_known { Requested::NotAllowed } else { Requested::NotKnown });
        }
        let end = tokio::time::Instant::now() + wait;
        let at = self.now();
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let id = format!("{:032x}", self.redlock.env().random());
        let mine = RunRequest { id, number: slot(at), at, by, reason };
        let (request, is_new) = loop {
            let resolved = records.request(mine.number).resolve(&mine).await;
            match resolved.map_err(|error| not_confirmed(&mine, error))? {
                Resolved::Stored => break (mine, true),
                Resolved::AlreadyStored(other) => break (other, false),
                Resolved::TooLarge => {
                    let size = format!("{} bytes", mine.reason.len() + mine.by.len());
                    let rule = "must be shorter, with the author";
                    return Err(ConfigError::new("reason", size, rule).into());
                }
                _ if tokio::time::Instant::now() >= end => return Ok(Requested::Undecided),
                // Another process is writing the same record.
                _ => sleep(AGAIN).await,
            }
        };
        loop {
            // A run has begun: also one that is under way, or whose process died.
            let run = match records.run(request.at).lookup::<Run>().await {
                Ok(Status::Stored(run)) => Some(Some(run)),
                Ok(
                    Status::Running { .. }
                    | Status::Lapsed { .. }
                    | Status::Unsettled
                    | Status::NotKept,
                )
                | Err(RunError::Codec { .. }) => Some(None),
                // The request is stored, and its run may begin. An error of the read above must not
                // hide that.
                _ => None,
            };
            if let Some(run) = run {
                return Ok(Requested::Begun { request, is_new, run });
            }
            if tokio::time::Instant::now() >= end {
                return Ok(Requested::Waits { request, is_new });
            }
            sleep(AGAIN).await;
        }
    }

    pub(super) fn requests(&self, job: &str) -> Result<Records, CronError> {
        let records = without_forgotten_reports(self.redlock.idempotency(NAMESPACE));
        let retention = Duration::from_secs(3 * DAY.unsigned_abs());
        let records = records.retention(retention).at_least_once().build()?;
        Ok(Records::new(records, self.id_of(job)))
    }
}

struct Looks<'a> {
    cron: &'a Cron,
    job: &'a str,
    records: &'a Records,
    found: BTreeSet<i64>,
    next: Vec<i64>,
    idle: u32,
}

/// Endless; each item is the time of one request. Without `records` it reads nothing and has no
/// items.
pub(super) fn requests<'a>(
    cron: &'a Cron,
    job: &'a str,
    records: Option<&'a Records>,
) -> impl Stream<Item = i64> + 'a {
    let (found, next, idle) = (BTreeSet::new(), Vec::new(), 0);
    let looks = records.map(|records| Looks { cron, job, records, found, next, idle });
    unfold(looks, |looks| async move {
        let Some(mut looks) = looks else { return std::future::pending().await };
        loop {
            if let Some(at) = looks.next.pop() {
                return Some((at, Some(looks)));
            }
            looks.idle += 1;
            let leads = looks.cron.lead.term.borrow().is_some();
            if leads || looks.idle >= SELDOM {
                looks.idle = 0;
                if let Err(why) = looks.look().await {
                    let job = looks.job;
                    tracing::debug!(target: "palisade::cron", %job, %why, "requests are not known");
                }
            }
            if looks.next.is_empty() {
                sleep(LOOK).await;
            }
        }
    })
}

impl Looks<'_> {
    async fn look(&mut self) -> Result<(), RunError> {
        let (now, records, job) = (self.cron.now(), self.records, self.job);
        // Two correct clocks differ by at most twice the clock error. One second more, because the
        // times are whole seconds.
        let apart = 2 * self.cron.redlock.config().clock_error.as_secs().cast_signed() + 1;
        let (first, last) = (slot(now - LATEST - apart), slot(now + apart));
        self.found.retain(|number| *number >= first);
        let new = (first..=last).filter(|number| !self.found.contains(number));
        let reads =
            new.map(
                |number| async move { (number, read::<RunRequest>(records.request(number)).await) },
            );
        let today = now.div_euclid(DAY);
        let signed = records.sign(today).lookup::<bool>();
        let (signed, reads) = tokio::join!(signed, join_all(reads));
        let mut failed = None;
        for (number, read) in reads {
            let request = match read {
                Ok(Status::Stored(request)) => request,
                Ok(_) => continue,
                // A record never changes, so it is not read again.
                Err(why @ RunError::Codec { .. }) => {
                    self.found.insert(number);
                    tracing::warn!(
                        target: "palisade::cron", %job, number, %why, "a request cannot be read"
                    );
                    continue;
                }
                Err(why) => {
                    failed = failed.or(Some(why));
                    continue;
                }
            };
            // Otherwise another program wrote the record.
            if slot(request.at) == number && self.found.insert(number) {
                let (by, reason) = (&request.by, &request.reason);
                tracing::info!(
                    target: "palisade::cron",
                    %job, number, %by, reason, "a run is requested"
                );
                self.next.push(request.at);
            }
        }
        if !matches!(signed?, Status::Stored(_)) {
            let _ = records.sign(today).resolve(&true).await?;
        }
        failed.map_or(Ok(()), Err)
    }
}
