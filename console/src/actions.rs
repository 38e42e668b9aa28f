//! Actions of operators, such as taking a lock from its holder. The console refuses an action
//! without permission, and writes each request to the audit, even one that it refused.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use palisade::FencingToken;
use palisade::election::StepDown;
use palisade::error::AcquireError;
use palisade::idempotency::{Decision, Resolved};
use palisade_cron::cron_names;
use palisade_cron::{Cron, CronError, Requested};
use palisade_ops::{Audit, Change, KeyFacts, Records, incidents, resolve, run_now};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use crate::audit::AuditLine;
use crate::ended::{Ended, of_change, of_decision};
use crate::history::{Entry, Level, now_ms};
use crate::pages::cron::{NOT_ALLOWED, end_of};
use crate::pages::incidents::{keys_of, retention};
use crate::pages::keys::{key_now, shown_as};
use crate::pages::{clean_sentence, span};
use crate::refusal::Refusal;
use crate::start::Shared;
use crate::visitor::{Role, Visitor};

/// Maximum time for which an action waits for the nodes or for a leader.
const WAIT: Duration = Duration::from_secs(25);

/// Maximum time for which an action waits for the beginning of a job's run.
const BEGINS: Duration = Duration::from_secs(10);

const CHANGED: &str = "it has changed since the page showed it; look again";

#[derive(Debug, Deserialize)]
pub(crate) struct Request {
    #[serde(flatten)]
    act: Act,
    /// State of the target as the visitor's web page showed it: the holder, the term of a leader,
    /// or the claim of a key. (Losses of data are named by the action itself.) If the state has
    /// changed since, the action is refused. Only programs leave this field out: their action
    /// applies to the state at the arrival of the request.
    #[serde(default)]
    expect: Option<String>,
    #[serde(default)]
    reason: String,
    /// The name of the target, which the visitor typed to confirm the action.
    #[serde(default)]
    confirm: String,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
enum Act {
    ForceRelease {
        name: String,
    },
    StepDown {
        name: String,
    },
    Rerun {
        namespace: String,
        key: String,
    },
    Release {
        namespace: String,
        key: String,
    },
    Purge {
        namespace: String,
        key: String,
    },
    Resolve {
        namespace: String,
        key: String,
        value: Value,
    },
    Decide {
        namespace: String,
        loss: String,
        decision: String,
        #[serde(default)]
        replace: bool,
        #[serde(default)]
        retention_ms: Option<u64>,
    },
    RunNow {
        job: String,
    },
}

impl Act {
    fn word(&self) -> &'static str {
        match self {
            Self::ForceRelease { .. } => "force-release",
            Self::StepDown { .. } => "step-down",
            Self::Rerun { .. } => "rerun",
            Self::Release { .. } => "release",
            Self::Purge { .. } => "purge",
            Self::Resolve { .. } => "resolve",
            Self::Decide { decision, .. } if decision == "park" => "decide-park",
            Self::Decide { .. } => "decide-run",
            Self::RunNow { .. } => "run-now",
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::ForceRelease { name } | Self::StepDown { name } => name,
            Self::Rerun { key, .. }
            | Self::Release { key, .. }
            | Self::Purge { key, .. }
            | Self::Resolve { key, .. } => key,
            Self::Decide { loss, .. } => loss.rsplit(',').next().unwrap_or(loss),
            Self::RunNow { job } => job,
        }
    }

    fn target(&self) -> String {
        match self {
            Self::Rerun { namespace, key }
            | Self::Release { namespace, key }
            | Self::Purge { namespace, key }
            | Self::Resolve { namespace, key, .. } => format!("{namespace}/{key}"),
            Self::Decide { namespace, loss, .. } => format!("{namespace}/{loss}"),
            other => other.name().to_owned(),
        }
    }
}

impl Act {
    /// Returns, for the audit, the parts of the request that decide about its effect. Results may
    /// be secret, so only the digest of a result is written.
    fn detail(&self, expect: Option<&str>) -> String {
        let shown = expect.map(|expect| format!("shown: {expect}"));
        let more = match self {
            Self::Resolve { value, .. } => {
                let mut digest = String::new();
                for byte in Sha256::digest(value.to_string()) {
                    let _ = write!(digest, "{byte:02x}");
                }
                Some(format!("SHA-256 of the value: {digest}"))
            }
            Self::Decide { replace, retention_ms, .. } => {
                let retention = retention(*retention_ms).as_millis();
                Some(format!("replace: {replace}, retention: {retention} ms"))
            }
            _ => None,
        };
        // The text that the page showed (`shown`) can have any length, so it comes last. If the
        // audit log cuts the text off, the other parts remain.
        more.into_iter().chain(shown).collect::<Vec<_>>().join("; ")
    }
}

/// Returns the reason for which a visitor with this role may not act; `None` if the visitor may.
pub(crate) fn refused(shared: &Shared, role: Option<Role>) -> Option<Refusal> {
    if !shared.allow_actions {
        let why = "this console only shows: start it with --allow-actions to act";
        return Some(Refusal::new(StatusCode::FORBIDDEN, "read_only", why));
    }
    if role != Some(Role::Act) {
        let why = "your role may read and not act: sign in with a token of the role act";
        return Some(Refusal::new(StatusCode::FORBIDDEN, "role", why));
    }
    None
}

/// Performs an action, and writes it to the audit.
pub(crate) async fn act(
    shared: &Arc<Shared>,
    visitor: &Visitor,
    from: String,
    request: Request,
) -> Result<Value, Refusal> {
    let Request { act, expect, reason, confirm } = request;
    let line = AuditLine {
        at: now_ms(),
        by: visitor.user.clone(),
        role: visitor.role.word(),
        from,
        action: act.word().to_owned(),
        target: clean_sentence(&act.target()),
        detail: clean_sentence(&act.detail(expect.as_deref())),
        reason: clean_sentence(&reason),
        ..AuditLine::default()
    };
    let audit = match check(shared, visitor, &act, (&reason, &confirm)) {
        Ok(audit) => audit,
        Err(refusal) => {
            let text = refusal.text().to_owned();
            shared.audits.refused(AuditLine { text, ..line });
            return Err(refusal);
        }
    };
    let name = act.name().to_owned();
    // So that the pages of other visitors read the audit log again.
    let begins = format!("{} of {name:?} by {} begins", line.action, line.by);
    let id = shared.audits.begun(line);
    shared.happened(Entry::of(Level::Info, "action", &name, begins));
    let work = {
        let shared = Arc::clone(shared);
        async move { perform(&shared, act, expect.as_deref(), &audit).await }
    };
    // The action runs in its own task, which continues if the visitor closes the page. So the audit
    // log always receives the result.
    let shared = Arc::clone(shared);
    let noted = tokio::spawn(async move {
        // The inner task catches a panic of the action, so that the audit log has a result even
        // then.
        let done = tokio::spawn(work).await;
        let done = done.unwrap_or_else(|e| Ok(Ended::new("unknown", e.to_string())));
        let ended = match &done {
            Ok(ended) => Ended::new(ended.word, clean_sentence(&ended.text)),
            Err(refusal) => Ended::new("refused", clean_sentence(refusal.text())),
        };
        if let Some(line) = shared.audits.ended(id, ended.word, &ended.text) {
            let text = format!("{} of {:?} by {}: {}", line.action, name, line.by, ended.text);
            let is_changed = ["done", "partly", "unknown"].contains(&ended.word);
            let level = if is_changed { Level::Warn } else { Level::Info };
            shared.happened(Entry::of(level, "action", &name, text));
        }
        shared.recent.forget();
        shared.hub.wake.notify_one();
        done.map(|_| ended)
    });
    let ended = noted.await.map_err(|e| Refusal::nodes(format!("the action failed: {e}")))??;
    Ok(json!({ "result": ended.word, "text": ended.text, "at_ms": now_ms(), "now_ms": now_ms() }))
}

fn check(
    shared: &Shared,
    visitor: &Visitor,
    act: &Act,
    (reason, confirm): (&str, &str),
) -> Result<Audit, Refusal> {
    if let Some(refusal) = refused(shared, Some(visitor.role)) {
        return Err(refusal);
    }
    if confirm != act.name() {
        let why = "the typed name is another one: type the name of what the action changes";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "confirm", why));
    }
    Audit::new(&*visitor.user, reason)
        .map_err(|e| Refusal::new(StatusCode::BAD_REQUEST, "reason", e.to_string()))
}

async fn perform(
    shared: &Arc<Shared>,
    act: Act,
    expect: Option<&str>,
    audit: &Audit,
) -> Result<Ended, Refusal> {
    let change = async |change: Change, namespace: &str, key: &str| {
        let records = Records::new(&shared.deployment, shared.prefix(), namespace)?;
        let changed = records.change_if(change, key, |of| is_as_shown(of, expect), audit).await?;
        Ok(changed.map_or(Ended::new("refused", CHANGED), |changed| of_change(&changed)))
    };
    match act {
        Act::ForceRelease { name } => force_release(shared, &name, expect, audit).await,
        Act::StepDown { name } => step_down(shared, &name, expect, audit).await,
        Act::Rerun { namespace, key } => change(Change::Rerun, &namespace, &key).await,
        Act::Release { namespace, key } => change(Change::Release, &namespace, &key).await,
        Act::Purge { namespace, key } => change(Change::Purge, &namespace, &key).await,
        Act::Resolve { namespace, key, value } => {
            let keys = shared.redlock.idempotency(&namespace).at_most_once().build()?;
            palisade::internal::check_name("key", &key)?;
            if expect.is_some() {
                let now = key_now(shared, &namespace, &key).await?;
                if !is_as_shown(now.facts.as_ref(), expect) {
                    return Ok(Ended::new("refused", CHANGED));
                }
            }
            Ok(match resolve(keys.key(&*key), &value, audit).await {
                Ok(Resolved::Stored) => Ended::new("done", "the result is stored"),
                Ok(Resolved::AlreadyStored(_)) => {
                    Ended::new("unchanged", "a result is there, and a stored result never changes")
                }
                Ok(Resolved::InFlight { retry_after, .. }) => {
                    let left = span(retry_after.as_millis() as u64);
                    Ended::new("refused", format!("it runs; its lease is over in {left}"))
                }
                Ok(other) => Ended::new("refused", format!("not stored: {other:?}")),
                Err(e) => Ended::new("unknown", e.to_string()),
            })
        }
        Act::Decide { namespace, loss, decision, replace, retention_ms } => {
            let decision = match &*decision {
                "run" => Decision::Run,
                "park" => Decision::Park,
                _ => return Err(Refusal::bad_request("decision: run or park")),
            };
            let keys = keys_of(shared, &namespace, retention(retention_ms))?;
            let seen = incidents(&keys).await;
            let incident = match seen.named(&loss) {
                Ok(incident) => incident,
                Err(other) => return Ok(Ended::new("refused", other.to_string())),
            };
            Ok(match incident.decide(&keys, decision, replace, audit).await {
                Ok(all) => {
                    let all = all.iter().map(|one| (one.loss, &one.stands, one.is_new));
                    of_decision(&all.collect::<Vec<_>>(), decision)
                }
                Err(e) => Ended::new("unknown", format!("it may be stored for some losses: {e}")),
            })
        }
        Act::RunNow { job } => run_job(shared, &job, audit).await,
    }
}

/// Returns true if the key is in the state that the visitor's page showed, or if the request names
/// no state.
fn is_as_shown(facts: Option<&KeyFacts>, expect: Option<&str>) -> bool {
    expect.is_none_or(|expect| facts.is_some_and(|facts| shown_as(facts) == expect))
}

/// Takes a lock from its holder, so that the holder cannot renew it. No client gets the lock until
/// the old lease ends. After that it is free.
async fn force_release(
    shared: &Arc<Shared>,
    name: &str,
    expect: Option<&str>,
    audit: &Audit,
) -> Result<Ended, Refusal> {
    // The guard is not renewed, so that its lease ends at the time that is reported to the visitor,
    // even if this process dies.
    let mutex = shared.redlock.mutex(name).auto_renew(false).acquire_timeout(WAIT).build()?;
    let seen = mutex.inspect().await.map_err(|e| Refusal::nodes(e.to_string()))?;
    let Some(holder) = seen.holder() else {
        return Ok(if seen.is_free() {
            Ended::new("unchanged", "no owner holds it")
        } else if seen.reader_count() > 0 {
            let why = "a lock cannot be taken from readers: end the processes that read";
            Ended::new("refused", why)
        } else {
            Ended::new("failed", "no majority of the nodes names a holder")
        });
    };
    // If the holder changes after this check, `take_over` fails.
    if expect.is_some_and(|expect| expect != holder.owner) {
        return Ok(Ended::new("refused", CHANGED));
    }
    let reason = format!("{} ({})", audit.reason(), audit.by());
    let taken = match timeout(WAIT + WAIT / 4, mutex.take_over(&holder, &reason)).await {
        Ok(Ok(taken)) => taken,
        Ok(Err(AcquireError::TimedOut { .. })) => {
            let why = format!(
                "not taken from {}: another owner holds it by now, or its lease is longer than \
                 max_ttl",
                holder.owner
            );
            return Ok(Ended::new("unknown", why));
        }
        Ok(Err(e)) => return Ok(Ended::new("unknown", e.to_string())),
        Err(_) => return Ok(Ended::new("unknown", "the nodes did not answer in time")),
    };
    let (fence, left) = (taken.guard.fencing_token(), taken.closed_for);
    tracing::warn!(
        target: "palisade_ops",
        event = "forced",
        name,
        by = audit.by(),
        reason = audit.reason(),
        from = holder.owner,
        token = fence.get(),
        "a lock was taken from its holder by an operator"
    );
    tokio::spawn(async move {
        tokio::time::sleep(taken.closed_for).await;
        // The release only wakes the waiters a little sooner.
        drop(taken.guard.release().await);
    });
    let left = span(left.as_millis() as u64);
    let text = format!(
        "taken from {}; the fence is {fence} now; it stays closed for another {left}, until the \
         old holder's lease is over, and is free then",
        holder.owner
    );
    Ok(Ended::new("done", text))
}

async fn step_down(
    shared: &Shared,
    name: &str,
    expect: Option<&str>,
    audit: &Audit,
) -> Result<Ended, Refusal> {
    let election = shared.redlock.election(name).build()?;
    let reason = format!("{} ({})", audit.reason(), audit.by());
    let asked = match expect.map(str::parse::<u64>) {
        // The request names the term that the page showed, so a later leader does not obey the
        // request.
        Some(Ok(term)) => election.step_down_from(FencingToken::new(term), &reason, WAIT).await,
        Some(Err(_)) => return Err(Refusal::bad_request("expect: the number of a term")),
        None => election.step_down(&reason, WAIT).await,
    };
    let ended = match asked {
        Ok(StepDown::Resigned(leader)) => {
            let text = format!("the term {} of {} is over", leader.term, leader.identity.host);
            Ended::new("done", text)
        }
        Ok(StepDown::Vacant) => Ended::new("unchanged", "there is no leader"),
        Ok(StepDown::OtherTerm(_)) => Ended::new("refused", CHANGED),
        Ok(StepDown::StillLeads(_)) => {
            Ended::new("failed", "the leader was asked, and still leads: it may hang")
        }
        Ok(_) => Ended::new("unknown", "the leader was asked"),
        Err(e) => Ended::new("unknown", e.to_string()),
    };
    tracing::warn!(
        target: "palisade_ops",
        event = "step_down",
        name,
        by = audit.by(),
        reason = audit.reason(),
        done = ended.word == "done",
        "a leader was asked to resign by an operator"
    );
    Ok(ended)
}

/// Requests a run of a job. The job's leader looks for requests every two seconds.
async fn run_job(shared: &Shared, id: &str, audit: &Audit) -> Result<Ended, Refusal> {
    let Some((cron, job)) = cron_names(id) else {
        let why = "`job` must be as the page shows it, with the name of its `Cron`: `cron/nightly`";
        return Err(Refusal::bad_request(why));
    };
    let cron = Cron::new(&shared.redlock).name(cron);
    Ok(match run_now(&cron, job, BEGINS, audit).await {
        Ok(Requested::NotAllowed) => Ended::new("refused", NOT_ALLOWED),
        Ok(Requested::NotKnown) => {
            let why = "it is not known if the job allows requests, because too few nodes have the \
                       sign of that; no request is stored; try again";
            Ended::new("refused", why)
        }
        Ok(Requested::Begun { request, is_new, run }) => {
            let (word, whose) = if is_new {
                ("done", "the request is stored".to_owned())
            } else {
                ("unchanged", format!("{} requested it in the same ten seconds", request.by))
            };
            let text = match run {
                Some(run) => format!("{whose}; the run on {} is {}", run.by, end_of(&run)),
                None => format!("{whose}; it has begun"),
            };
            Ended::new(word, text)
        }
        Ok(Requested::Waits { request, .. }) => {
            let until = crate::pages::clock(crate::history::millis(request.until()));
            let why = format!(
                "the request is stored, and no process has begun the run: its leader may be away, \
                 or the job runs now; it begins until {until}, or not at all"
            );
            Ended::new("unknown", why)
        }
        Ok(Requested::Undecided) => {
            Ended::new("unknown", "another operator requests it at the same time; look again")
        }
        Ok(other) => Ended::new("unknown", format!("{other:?}")),
        Err(e @ CronError::Config(_)) => return Err(Refusal::bad_request(e.to_string())),
        Err(e @ CronError::Record(_)) => Ended::new("failed", format!("no request is stored: {e}")),
        // The error's text contains the time until which another request could run the job twice.
        Err(e) => Ended::new("unknown", e.to_string()),
    })
}
