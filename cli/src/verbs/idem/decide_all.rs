//! The command `palisade idem decide --all`: one decision about every loss of data that nobody has
//! decided, in every namespace in which keys may wait. The command first prints what it would
//! decide, and decides exactly that when it is called again.

use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use palisade::Redlock;
use palisade::idempotency::Decision;
use palisade::internal::quoted;
use palisade_ops::{Audit, Deployment, InMemory, Incident, KeyState, Records, Select, in_memory};

use super::super::Ground;
use super::change::event;
use super::failed;
use super::incidents::{Decisions, keys, settlement, word};
use crate::Done;
use crate::codes::{Fail, REFUSED, USAGE};

/// Number of waiting keys that are counted at most.
const COUNTED: usize = 1_000;

/// What the records of a namespace say about keys that wait because of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// So many keys were called since the loss and did not run. Their records are kept for some
    /// seconds only, so there may be more.
    Keys(usize),
    /// Keys ran since the loss, and none waits: they were made after the loss, and say so.
    Ran,
    /// No key was called since the loss, or not lately.
    NotCalled,
    NotRead,
}

impl Waiting {
    /// Returns true if a person has to decide: keys wait, or may come.
    pub(super) fn asks(self) -> bool {
        self != Self::Ran
    }

    /// Returns the number of keys that wait; `None` if it is not known.
    pub(super) fn count(self) -> Option<usize> {
        match self {
            Self::Keys(n) => Some(n),
            Self::Ran => Some(0),
            Self::NotCalled | Self::NotRead => None,
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys(1) => f.write_str("1 key waits"),
            Self::Keys(COUNTED..) => write!(f, "{COUNTED} keys wait, or more"),
            Self::Keys(n) => write!(f, "{n} keys wait"),
            Self::Ran => f.write_str("no key waits"),
            Self::NotCalled => f.write_str("no key was called lately"),
            Self::NotRead => f.write_str("not known how many keys wait"),
        }
    }
}

/// Reads what the records of a namespace say about keys that wait because of the incident.
pub(super) async fn waiting(
    (redlock, servers): (&Redlock, &Deployment),
    namespace: &str,
    incident: &Incident,
    retention: Duration,
) -> Result<Waiting, Fail> {
    let config = redlock.config();
    let ends = incident.losses.iter().map(|one| one.loss.to);
    let spread = ends.clone().max().unwrap_or_default() - ends.min().unwrap_or_default();
    // `remaining` began at the end of the loss, with the retention and 2E. The floor of the tokens
    // makes a claim look younger, so none is too old.
    let whole = retention + 2 * config.clock_error + Duration::from_millis(spread);
    let since = Some(whole.saturating_sub(incident.remaining));
    let records = Records::new(servers, &config.prefix, namespace)?;
    let (states, limit) = (vec![KeyState::Free], Some(COUNTED));
    let free = Select { states, younger_than: since, limit, ..Select::default() };
    let free = records.list(&free).await?;
    if !free.keys.is_empty() {
        return Ok(Waiting::Keys(free.keys.len()));
    }
    let (states, limit) = (vec![KeyState::Stored, KeyState::Running], Some(1));
    let ran = Select { states, younger_than: since, limit, ..Select::default() };
    let ran = records.list(&ran).await?;
    Ok(if !free.unread.is_empty() || !ran.unread.is_empty() {
        Waiting::NotRead
    } else if ran.keys.is_empty() {
        Waiting::NotCalled
    } else {
        Waiting::Ran
    })
}

/// Returns true if the losses of an incident are to be decided about.
pub(super) fn is_open(decisions: &Decisions, replace: bool) -> bool {
    let Ok(all) = decisions else { return true };
    all.iter().any(|(_, decided)| match decided {
        None => true,
        Some(decided) => replace && decided.decision == Decision::Park,
    })
}

/// What the person asked for on the command line.
pub(super) struct Asked {
    pub(super) decision: Decision,
    pub(super) replace: bool,
    pub(super) retention: Duration,
    pub(super) audit: Audit,
    /// Number of the plan that the person was shown.
    pub(super) shown: Option<String>,
}

/// The losses of one incident that are to be decided about in one namespace.
pub(super) struct Open<'a> {
    pub(super) incident: &'a Incident,
    pub(super) namespace: String,
    /// `None` if all its losses are decided, and one is decided anew.
    pub(super) waiting: Option<Waiting>,
}

impl Open<'_> {
    fn line(&self) -> String {
        match self.waiting {
            Some(waiting) => format!("  {:?}: {waiting}", self.namespace),
            None => format!("  {:?}: decided before", self.namespace),
        }
    }
}

/// Prints the plan, or carries it out if it is the one that the person was shown.
pub(super) async fn decide(
    ground: &Ground,
    asked: &Asked,
    plan: &[Open<'_>],
    nodes: usize,
) -> Result<Done, Fail> {
    if plan.is_empty() {
        let text = "no key waits for a decision about a loss of data; nothing was decided. If a \
                    program says that one does, look again when it comes, or name its namespace by \
                    --namespace\n";
        return Ok(Done { text: text.to_owned(), code: 0 });
    }
    let number = number(asked, plan);
    if asked.shown.as_ref() != Some(&number) {
        return Ok(shown(asked, plan, &number));
    }
    let (mut text, mut code) = (String::new(), 0);
    for open in plan {
        let keys = keys(&ground.redlock, &open.namespace, asked.retention)?;
        let done = open.incident.decide(&keys, asked.decision, asked.replace, &asked.audit).await;
        let stands = done
            .as_ref()
            .is_ok_and(|all| all.iter().all(|one| one.stands.decision == asked.decision));
        let prefix = &*ground.redlock.config().prefix;
        let what = format!("decide-{}", word(asked.decision));
        let loss = open.incident.name();
        let of = (prefix, &*open.namespace, &*loss);
        event(ground.say, &what, of, &asked.audit, Some(stands));
        let _ = writeln!(text, "{:?}, {}", open.namespace, open.incident);
        for one in &done.map_err(failed)? {
            let _ = writeln!(text, "  {}", settlement(one, asked.decision, nodes));
        }
        code = if stands { code } else { REFUSED };
    }
    if code == 0 {
        text += FOLLOW;
        text += &unsaved(ground).await?;
    }
    Ok(Done { text, code })
}

/// Time within which programs follow a decision.
pub(super) const FOLLOW: &str =
    "requests follow within 5 s when they come again, messages that are held within a minute\n";

/// Returns a line for each server on which the decision is not on the disk yet.
pub(super) async fn unsaved(ground: &Ground) -> Result<String, Fail> {
    let Some(servers) = &ground.servers else { return Ok(String::new()) };
    Ok(lines_in_memory(&in_memory(servers).await?))
}

/// Returns a line for each server whose last writes are not on its disk.
pub(crate) fn lines_in_memory(servers: &[InMemory]) -> String {
    let mut text = String::new();
    for InMemory { at, why, save, .. } in servers {
        let save = save.as_ref().map(|save| format!("; `{save}` saves it now"));
        let save = save.unwrap_or_default();
        let _ = writeln!(text, "{at} {why}, this is lost and has to be done again{save}");
    }
    text
}

fn shown(asked: &Asked, plan: &[Open<'_>], number: &str) -> Done {
    let mut text = String::new();
    if asked.shown.is_some() {
        text += "what is open has changed since that was shown; it is now:\n";
    }
    let mut last = None;
    for open in plan {
        if last != Some(open.incident) {
            let _ = writeln!(text, "{}", open.incident);
            last = Some(open.incident);
        }
        let _ = writeln!(text, "{}", open.line());
    }
    let what = match asked.decision {
        Decision::Run => "all keys that these losses made forgotten run",
        Decision::Park => "no key that these losses made forgotten runs",
    };
    let _ = writeln!(text, "nothing was decided yet; so that {what}: `{} --yes {number}`", typed());
    let code = if asked.shown.is_some() { REFUSED } else { USAGE };
    Done { text, code }
}

/// Returns the command line of this process, without the number of an earlier plan.
fn typed() -> String {
    let mut typed = vec!["palisade".to_owned()];
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match &*arg {
            "--yes" => drop(args.next()),
            arg if arg.starts_with("--yes=") => {}
            arg => typed.push(quoted(arg)),
        }
    }
    typed.join(" ")
}

/// Returns the number of the plan. Another set of losses or of namespaces has another number.
fn number(asked: &Asked, plan: &[Open<'_>]) -> String {
    let mut hasher = DefaultHasher::new();
    (word(asked.decision), asked.replace).hash(&mut hasher);
    for open in plan {
        open.namespace.hash(&mut hasher);
        for one in &open.incident.losses {
            (one.loss.from, one.loss.began, &*one.node).hash(&mut hasher);
        }
    }
    format!("{:08x}", hasher.finish() >> 32)
}
