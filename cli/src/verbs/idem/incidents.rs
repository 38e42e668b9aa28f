//! The commands `palisade idem incidents` and `decide`. After a loss of data, nodes cannot tell if
//! a key was used (the key is forgotten). `incidents` lists the losses. `decide` decides about all
//! keys that a loss made forgotten.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use palisade::idempotency::{Decided, Decision};
use palisade::internal::commands;
use palisade::node::Loss;
use palisade::{Idempotency, Redlock, RunError};
use palisade_ops::{DecidedLoss, Incident, Incidents, OtherLosses, incidents, namespaces};
use serde_json::{Value, json};

use super::super::{Ground, GroundArgs, SayArgs, unread_json};
use super::change::{AuditArgs, event};
use super::decide_all::{self, Asked, FOLLOW, Open, Waiting, is_open};
use super::{failed, reasons};
use crate::Done;
use crate::codes::{Fail, REFUSED, UNAVAILABLE};
use crate::settings::HandleArgs;
use crate::span::Span;

/// Namespace with which the losses of data are read if no namespace was found on the nodes.
const NO_NAMESPACE: &str = "once";

pub(super) const HELP: &str = "Examples:
  palisade idem incidents --node redis://127.0.0.1
  palisade idem decide --all --run --reason 'none took effect' --node redis://127.0.0.1
  palisade idem decide --namespace payments --loss 20261123-140321.417 --run \\
    --reason 'the ledger has none of them' --node redis://127.0.0.1

A loss is named by the time (UTC) at which the data after it began, and losses that belong together
by all their numbers. A decision is about the losses that are named, and is refused if another one
has joined them: list again. --all decides about every loss that nobody has decided, where keys
wait; it first prints what that is, with the command that decides it. Requests follow a decision
within 5 s, messages that are held within a minute: all keys of the namespace that these losses made
forgotten. A program that accepts
losses of this length (`accept_loss`) needs no decision. --park may be replaced by --run later
(--replace); --run is final, because keys have run since. It says nothing of what a node has that
gives no answer: keys wait for that node, unless it is gone for good (--without). Exit code: 0 done,
or all nodes were read; 2 another decision stands, or there is no such loss, or not all nodes were
read; 64 wrong use; 69 not reached.";

/// Lists the losses of data by which nodes have forgotten keys, and the decision about each loss.
#[derive(Debug, Args)]
pub(crate) struct IncidentsArgs {
    #[command(flatten)]
    handle: HandleArgs,
    /// Read only this namespace [default: all namespaces with a record or a decision]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Time for which results are kept in the namespaces
    #[arg(long, value_name = "SPAN", default_value = "1d")]
    retention: Span,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Decides about all forgotten keys of a namespace. The nodes have forgotten these keys by a loss
/// of data.
///
/// Without a decision, the requests and messages with these keys wait, or they are parked (not
/// run).
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(group = clap::ArgGroup::new("decision").required(true).args(["runs", "parks"]))]
pub(crate) struct DecideArgs {
    #[command(flatten)]
    ground: GroundArgs,
    /// Namespace of the keys
    #[arg(long, value_name = "NAME", required_unless_present = "all")]
    namespace: Option<String>,
    /// Number of the loss, or several with commas, as `palisade idem incidents` prints them
    #[arg(long, value_name = "NUMBERS", required_unless_present = "all")]
    loss: Option<String>,
    /// Every loss that nobody has decided, in every namespace where keys may wait (or in
    /// --namespace). Without --yes, print what would be decided, and the command that decides it
    #[arg(long, conflicts_with = "loss")]
    all: bool,
    /// Decide what was shown under this number
    #[arg(long, value_name = "NUMBER", requires = "all")]
    yes: Option<String>,
    /// The keys run: their requests took no effect, or they may be repeated
    #[arg(id = "runs", long = "run")]
    runs: bool,
    /// The keys are parked (not run): a person examines each key
    #[arg(id = "parks", long = "park")]
    parks: bool,
    /// Run the keys even if an earlier decision parked them
    #[arg(long, conflicts_with = "parks")]
    replace: bool,
    /// Name of a node that is gone for good: keys run as decided, although it may remember them
    #[arg(long, value_name = "NODE", requires = "runs")]
    without: Vec<String>,
    /// Time for which results are kept in the namespace
    #[arg(long, value_name = "SPAN", default_value = "1d")]
    retention: Span,
    #[command(flatten)]
    audit: AuditArgs,
}

pub(super) fn keys(
    redlock: &Redlock,
    namespace: &str,
    retention: Duration,
) -> Result<Idempotency, Fail> {
    let keys = redlock.idempotency(namespace).retention(retention).at_most_once().build();
    Ok(keys?)
}

pub(super) fn word(decision: Decision) -> &'static str {
    match decision {
        Decision::Run => "run",
        Decision::Park => "park",
    }
}

pub(super) type Decisions = Result<Vec<(Loss, Option<Decided>)>, RunError>;

impl IncidentsArgs {
    pub(super) async fn run(self) -> Result<Done, Fail> {
        let say = SayArgs { json: self.json, verbose: false };
        let ground = GroundArgs { handle: self.handle, say }.without_signals()?;
        let retention = self.retention.0;
        let (names, unnamed) = named(&ground, self.namespace.as_ref()).await?;
        let seen = read(&ground, &names, retention).await?;
        let all = standings(&ground, &seen, &names, retention).await?;
        let text = if self.json {
            format!("{}\n", object(&all, &seen, &unnamed))
        } else {
            table(&all, &seen, &unnamed, retention) + &what_to_do(&ground, &all, retention)
        };
        ground.close().await;
        let whole = seen.unread.is_empty() && unnamed.is_empty();
        Ok(Done { text, code: if whole { 0 } else { REFUSED } })
    }
}

/// The decisions about the losses of one incident in one namespace.
struct Standing {
    namespace: String,
    decisions: Decisions,
    /// The keys that wait, if a loss is undecided.
    waiting: Option<Waiting>,
}

impl Standing {
    /// Returns true if a person has to decide, because keys wait or may wait.
    fn asks(&self) -> bool {
        self.waiting.is_some_and(Waiting::asks)
    }
}

/// An incident (losses of data that belong together), with the decisions in each namespace.
type Listed<'a> = (&'a Incident, Vec<Standing>);

/// Returns the given namespace, or all namespaces of the nodes. Returns also the nodes whose
/// namespaces could not be read.
async fn named(
    ground: &Ground,
    one: Option<&String>,
) -> Result<(BTreeSet<String>, Vec<(String, String)>), Fail> {
    match (one, &ground.servers) {
        (Some(name), _) => Ok(([name.clone()].into(), Vec::new())),
        (None, Some(servers)) => Ok(namespaces(servers, &ground.redlock.config().prefix).await?),
        (None, None) => Ok((BTreeSet::new(), Vec::new())),
    }
}

async fn read(
    ground: &Ground,
    names: &BTreeSet<String>,
    retention: Duration,
) -> Result<Incidents, Fail> {
    let asked = names.first().map_or(NO_NAMESPACE, String::as_str);
    let seen = incidents(&keys(&ground.redlock, asked, retention)?).await;
    if seen.unread.len() == seen.nodes {
        return Err(Fail::new(UNAVAILABLE, reasons(&seen.unread)));
    }
    Ok(seen)
}

async fn standings<'a>(
    ground: &Ground,
    seen: &'a Incidents,
    names: &BTreeSet<String>,
    retention: Duration,
) -> Result<Vec<Listed<'a>>, Fail> {
    let mut all = Vec::new();
    for incident in &seen.incidents {
        let mut standings = Vec::new();
        for name in names {
            let decisions = incident.decisions(&keys(&ground.redlock, name, retention)?).await;
            let waiting = match &ground.servers {
                Some(servers) if is_open(&decisions, false) => {
                    let on = (&ground.redlock, servers);
                    Some(decide_all::waiting(on, name, incident, retention).await?)
                }
                None if is_open(&decisions, false) => Some(Waiting::NotRead),
                _ => None,
            };
            standings.push(Standing { namespace: name.clone(), decisions, waiting });
        }
        all.push((incident, standings));
    }
    Ok(all)
}

/// Returns the commands that decide about what waits; an empty text if nothing does.
fn what_to_do(ground: &Ground, all: &[Listed<'_>], retention: Duration) -> String {
    if !all.iter().flat_map(|(_, standings)| standings).any(Standing::asks) {
        return String::new();
    }
    let commands = commands(&ground.redlock, retention);
    let (run, park) = (commands.run_all(), commands.park_all());
    format!(
        "what waits is neither run nor lost; look at what its requests change (a ledger, the other \
         system):\n\
         - none of them took effect, or a repeat does no harm: {run}\n\
         - some did, or nobody can tell: give the calls `created_at` (when the request was made), \
         and restart the program. Requests made after the loss then run, and what waits is older. \
         Store the results of those that took effect (`Call::resolve`), then --run as above; or \
         have \
         a person look at each of them: {park}\n"
    )
}

/// Returns the incidents (losses of data) as a JSON object. `unnamed` are the nodes whose
/// namespaces could not be read.
fn object(all: &[Listed<'_>], seen: &Incidents, unnamed: &[(String, String)]) -> Value {
    let stands = |decided: &Option<Decided>| match decided {
        Some(d) => json!({ "decision": word(d.decision), "by": d.by, "reason": d.reason,
                           "at_ms": d.at }),
        None => Value::Null,
    };
    let about = |one: &Standing| match &one.decisions {
        Ok(all) => {
            let losses = all.iter().map(|(loss, decided)| {
                json!({ "from_ms": loss.from, "to_ms": loss.to, "decided": stands(decided) })
            });
            json!({ "namespace": one.namespace, "losses": losses.collect::<Vec<_>>(),
                    "waiting": one.waiting.and_then(Waiting::count) })
        }
        Err(e) => json!({ "namespace": one.namespace, "error": e.to_string() }),
    };
    let incident = |(incident, decided): &Listed<'_>| {
        let losses = incident.losses.iter().map(|one| {
            json!({ "node": &*one.node, "from_ms": one.loss.from, "to_ms": one.loss.to,
                    "length_ms": one.loss.length().map(|length| length.as_millis()) })
        });
        json!({ "loss": incident.name(), "losses": losses.collect::<Vec<_>>(),
                "remaining_ms": incident.remaining.as_millis(),
                "namespaces": decided.iter().map(about).collect::<Vec<_>>() })
    };
    json!({ "incidents": all.iter().map(incident).collect::<Vec<_>>(),
            "unread": unread_json(&seen.unread), "namespaces_unread": unread_json(unnamed) })
}

fn table(
    all: &[Listed<'_>],
    seen: &Incidents,
    unnamed: &[(String, String)],
    retention: Duration,
) -> String {
    let mut text = String::new();
    for (incident, decided) in all {
        let left = Duration::from_secs(incident.remaining.as_secs());
        let _ = writeln!(text, "{incident}; matters for another {left:?}");
        for one in decided {
            let waiting = match one.waiting {
                None => String::new(),
                // Keys that were made after the loss run without a decision.
                Some(Waiting::Ran) => {
                    let _ = writeln!(text, "  {:?}: {}", one.namespace, Waiting::Ran);
                    continue;
                }
                Some(waiting) => format!(", {waiting}"),
            };
            let _ = writeln!(text, "  {:?}: {}{waiting}", one.namespace, standing(&one.decisions));
        }
        if decided.is_empty() && unnamed.is_empty() {
            text += "  no namespace has a record; name one by --namespace\n";
        }
    }
    if all.is_empty() {
        let nodes = seen.nodes;
        let _ = writeln!(
            text,
            "no loss of {nodes} nodes makes keys forgotten, if results are kept for {retention:?} \
             (--retention)"
        );
    }
    for (node, why) in &seen.unread {
        let _ = writeln!(text, "not read, so losses of this node alone are missing: {node}: {why}");
    }
    for (node, why) in unnamed {
        let _ = writeln!(
            text,
            "its namespaces were not read, so name yours by --namespace: {node}: {why}"
        );
    }
    text
}

fn standing(decisions: &Decisions) -> String {
    let all = match decisions {
        Ok(all) => all,
        Err(e) => return format!("not known: {e}"),
    };
    let open = all.iter().filter(|(_, decided)| decided.is_none()).count();
    let first = all.iter().find_map(|(_, decided)| decided.as_ref());
    match first {
        None => "undecided".to_owned(),
        Some(_) if open > 0 => format!("undecided about {open} of {} losses", all.len()),
        Some(first) if all.iter().flat_map(|(_, d)| d).all(|d| d.decision == first.decision) => {
            format!("{}, by {}: {}", word(first.decision), first.by, first.reason)
        }
        Some(_) => "run for some of the losses, park for others: such keys are parked".to_owned(),
    }
}

impl DecideArgs {
    pub(super) async fn run(self) -> Result<Done, Fail> {
        let audit = self.audit.audit()?;
        let decision = if self.runs { Decision::Run } else { Decision::Park };
        let (replace, retention) = (self.replace, self.retention.0);
        let (Some(namespace), Some(loss)) = (&self.namespace, &self.loss) else {
            let ground = self.ground.without_signals()?;
            let asked = Asked { decision, replace, retention, audit, shown: self.yes };
            let done = decide_all(&ground, self.namespace.as_ref(), &asked).await;
            ground.close().await;
            return done;
        };
        check_number(loss)?;
        let ground = self.ground.without_signals()?;
        let keys = keys(&ground.redlock, namespace, retention)?;
        let seen = incidents(&keys).await;
        let incident = match seen.named(loss) {
            Ok(incident) => incident,
            Err(other) => return Err(not_these(&other, &seen, retention)),
        };
        if seen.unread.is_empty() && !self.without.is_empty() {
            let why = "--without: every node answered, and no key waits for one that is gone";
            return Err(Fail::new(REFUSED, why));
        }
        let settled = incident.decide(&keys, decision, replace, &audit).await;
        let prefix = &*ground.redlock.config().prefix;
        let done = settled
            .as_ref()
            .is_ok_and(|all| all.iter().all(|one: &DecidedLoss| one.stands.decision == decision));
        let what = format!("decide-{}", word(decision));
        event(ground.say, &what, (prefix, namespace, loss), &audit, Some(done));
        let all = settled.map_err(failed)?;
        let mut text = format!("{incident}\n");
        for one in &all {
            let _ = writeln!(text, "{}", settlement(one, decision, seen.nodes));
        }
        for node in self.without.iter().filter(|_| done) {
            incident.give_up(&keys, node, &audit).await.map_err(failed)?;
            let _ = writeln!(text, "keys run although {node} may remember them");
        }
        for (node, why) in &seen.unread {
            let _ = writeln!(
                text,
                "not read; keys wait for it, as long as it may remember them (--without, if it is \
                 gone for good), and if it lost data, decide again: {node}: {why}"
            );
        }
        if done {
            let _ = writeln!(
                text,
                "this is about keys of {namespace:?} under the prefix {prefix:?}; if none follows, \
                 the program has other names"
            );
            text += FOLLOW;
            text += &decide_all::unsaved(&ground).await?;
        }
        ground.close().await;
        Ok(Done { text, code: if done { 0 } else { REFUSED } })
    }
}

/// Decides about every loss that is open, in every namespace where keys wait, or shows what that
/// is.
async fn decide_all(
    ground: &Ground,
    namespace: Option<&String>,
    asked: &Asked,
) -> Result<Done, Fail> {
    let (names, unnamed) = named(ground, namespace).await?;
    let seen = read(ground, &names, asked.retention).await?;
    // A node that was not read may have another loss, or keys of another namespace that wait.
    let unread = seen.unread.iter().map(|(node, why)| format!("{node}: {why}"));
    let unread: Vec<_> =
        unread.chain(unnamed.iter().map(|(n, why)| format!("{n}: {why}"))).collect();
    let all = standings(ground, &seen, &names, asked.retention).await?;
    let mut plan = Vec::new();
    for (incident, standings) in all {
        for one in standings {
            // Who names a namespace has heard of a key that waits there.
            let is_named = namespace.is_some() && one.waiting.is_some();
            let reopens = asked.replace && is_open(&one.decisions, true);
            if one.asks() || is_named || reopens {
                let (namespace, waiting) = (one.namespace, one.waiting);
                plan.push(Open { incident, namespace, waiting });
            }
        }
    }
    let mut done = decide_all::decide(ground, asked, &plan, seen.nodes).await?;
    for why in unread {
        let _ = writeln!(done.text, "not read; if it lost data, decide again: {why}");
    }
    Ok(done)
}

/// Checks the form of a loss number before a request is sent to a server.
fn check_number(loss: &str) -> Result<(), Fail> {
    let shape = |c: char| if c.is_ascii_digit() { '0' } else { c };
    if loss.split(',').all(|one| one.chars().map(shape).eq("00000000-000000.000".chars())) {
        return Ok(());
    }
    let why = "is no number of a loss, such as 20261123-140321.417, nor several with commas; \
               `palisade idem incidents` lists them";
    Err(Fail::from(format!("--loss {loss:?} {why}")))
}

pub(super) fn settlement(one: &DecidedLoss, asked: Decision, nodes: usize) -> String {
    let stands = &one.stands;
    let unread = match one.unread {
        0 => String::new(),
        silent => format!(", not read on {silent}"),
    };
    let on = format!("on {} of {nodes} nodes{unread}", one.on);
    let word = word(stands.decision);
    let (by, why) = (&stands.by, &stands.reason);
    let range = one.loss.to_string();
    if one.is_new {
        return format!("{range}: {word}, stored {on}");
    }
    let hint = match (stands.decision, asked) {
        (Decision::Park, Decision::Run) => "; not changed, --replace does",
        (Decision::Run, Decision::Park) => "; not changed, because keys have run since",
        _ => "",
    };
    format!("{range}: {word} was decided before by {by}: {why}; {on}{hint}")
}

fn not_these(other: &OtherLosses, seen: &Incidents, retention: Duration) -> Fail {
    let (unread, nodes) = (seen.unread.len(), seen.nodes);
    if unread == nodes {
        return Fail::new(UNAVAILABLE, reasons(&seen.unread));
    }
    let why = format!(
        "{other}, by {} of {nodes} nodes, if results are kept for {retention:?} (--retention)",
        nodes - unread
    );
    Fail::new(REFUSED, why)
}
