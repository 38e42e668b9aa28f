//! The state of the deployment as the console read it last. The collector, the task that reads the
//! nodes, writes the state. The pages read it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use palisade::election::{Candidate, Leader};
use palisade::node::Loss;
use palisade::{Ability, Inspection, SemaphoreInspection};
use palisade_cron::{RunRequest, TickReport, TickState};
use palisade_ops::doctor::Report;
use palisade_ops::{KeyFacts, NodeData, Waiter};

/// Longest duration of a round of the scan, which reads all keys of the nodes. If a round takes
/// longer, the lists of names do not count as complete.
const SHORT: Duration = Duration::from_secs(30);

/// The state of the deployment's nodes, as the console read it last.
#[derive(Default)]
pub(crate) struct Model {
    /// Time of the last complete reading of the nodes.
    pub(crate) at: Option<u64>,
    pub(crate) needed: usize,
    pub(crate) votes: Vec<Vote>,
    /// Time until locks can be acquired; and time until new keys can be claimed by calls that have
    /// no birth.
    pub(crate) abilities: Option<(Ability, Ability)>,
    pub(crate) locks: BTreeMap<LockId, LockRow>,
    pub(crate) elections: BTreeMap<String, ElectionRow>,
    pub(crate) jobs: BTreeMap<String, JobRow>,
    pub(crate) keys: BTreeMap<(String, String), KeyRow>,
    /// Namespaces of which a record or a decision was found. A namespace stays when its last record
    /// is gone, because a loss of data may have removed the record.
    pub(crate) namespaces: BTreeSet<String>,
    /// Numbers of locks, elections and keys that were found but are not kept, because there are too
    /// many.
    pub(crate) left_out: LeftOut,
    /// Number of lock names that an earlier round of the scan found and that were never checked.
    pub(crate) locks_unchecked: usize,
    pub(crate) failovers: VecDeque<Failover>,
    pub(crate) markers: Vec<NodeData>,
    /// Time of the last reading of the markers; 0 before the first one.
    pub(crate) markers_at: u64,
    pub(crate) doctor: Examination,
    /// Nodes that the console could not read in its last reading, with the reasons.
    pub(crate) unread: BTreeMap<String, String>,
    /// Prefixes of other applications whose elections, semaphores or keys are on the nodes.
    pub(crate) other_prefixes: BTreeSet<String>,
    pub(crate) scan: ScanProgress,
    /// Requests that the console sent to each node in the last seconds, per second.
    pub(crate) rate: f64,
    /// Number of incidents that waited for a decision when they were read last; `None` if they were
    /// not read yet.
    pub(crate) incidents: Option<usize>,
}

/// State of a node's vote, which shows if the node grants locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteState {
    Votes,
    Quarantine,
    Unreachable,
    Refuses,
    Unknown,
}

impl VoteState {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Votes => "votes",
            Self::Quarantine => "quarantine",
            Self::Unreachable => "unreachable",
            Self::Refuses => "refuses",
            Self::Unknown => "unknown",
        }
    }
}

/// One node, and its vote: whether it grants locks.
#[derive(Clone, Debug)]
pub(crate) struct Vote {
    pub(crate) node: String,
    pub(crate) state: VoteState,
    /// The reason for which the node does not vote.
    pub(crate) why: Option<String>,
    /// Time at which the node votes again, if it is known.
    pub(crate) until: Option<u64>,
    /// Time since which the console has seen the node in this state.
    pub(crate) since: u64,
    /// Duration of the last request to the node. The next field has the durations of about the last
    /// minute, the latest first.
    pub(crate) latency: Option<Duration>,
    pub(crate) latencies: VecDeque<Duration>,
    pub(crate) losses: Vec<Loss>,
    /// True if an event of the node came after its vote was read. Then the vote is read again.
    pub(crate) is_changed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LockId {
    pub(crate) name: String,
    pub(crate) is_semaphore: bool,
}

/// Holders of a lock or a semaphore, as each node reports them.
#[derive(Clone, Debug)]
pub(crate) enum View {
    Lock(Inspection),
    Semaphore(SemaphoreInspection),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LockRow {
    pub(crate) view: Option<View>,
    pub(crate) at: u64,
    /// The waiters, the longest wait first; `None` if no node could be read.
    pub(crate) waiters: Option<Vec<Waiter>>,
    /// True if a node has a value under the lock's main key, the key that holds the owner.
    pub(crate) is_there: bool,
    /// End of each holder's lease, by owner. Small differences between readings do not change it.
    pub(crate) ends: BTreeMap<String, u64>,
}

/// A term that the console saw.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    /// Fencing token of the leadership.
    pub(crate) number: u64,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) value: String,
    pub(crate) from: u64,
    pub(crate) to: Option<u64>,
    /// False if the console has not seen the beginning of the term.
    pub(crate) seen_from_start: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ElectionRow {
    pub(crate) leader: Option<Leader>,
    pub(crate) candidates: Vec<Candidate>,
    /// The reason for which the leader is unknown.
    pub(crate) unknown: Option<String>,
    pub(crate) at: u64,
    pub(crate) until: u64,
    pub(crate) terms: VecDeque<Term>,
    /// Times without a leader that the console saw: the beginning, and the end if it is over.
    pub(crate) gaps: VecDeque<(u64, Option<u64>)>,
    /// Round of the scan of the nodes' keys in which the election was found last.
    pub(crate) round: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct JobRow {
    pub(crate) schedule: String,
    pub(crate) zone: String,
    /// Time since which the job has its schedule, in seconds since 1970.
    pub(crate) since: i64,
    /// The last ticks, the latest first.
    pub(crate) ticks: Vec<TickReport>,
    /// The last requested runs, the latest first.
    pub(crate) requested: Vec<(RunRequest, TickState)>,
    pub(crate) next: Option<u64>,
    pub(crate) at: u64,
    /// The reason for which the job could not be read.
    pub(crate) unknown: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct KeyRow {
    /// State of the key at the last reading; `None` before the first one.
    pub(crate) facts: Option<KeyFacts>,
    /// Time at which the console last read the key's state from the nodes.
    pub(crate) at: u64,
    /// Round of the scan of the nodes' keys in which the key was found last.
    pub(crate) round: u64,
}

/// A step of a failover: an event of the failed node, with its time.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) at: u64,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

/// A time in which a node did not vote, as the console saw it.
#[derive(Clone, Debug)]
pub(crate) struct Failover {
    pub(crate) id: u64,
    pub(crate) node: String,
    pub(crate) began: u64,
    pub(crate) back: Option<u64>,
    pub(crate) quarantine: bool,
    pub(crate) ended: Option<u64>,
    pub(crate) cause: Option<&'static str>,
    pub(crate) steps: Vec<Step>,
    pub(crate) loss: Option<Loss>,
    pub(crate) reasserted: u64,
    /// Leases that were held when the failover began, as pairs of a name and an owner; `None` if
    /// the console did not watch leases then.
    pub(crate) held: Option<BTreeSet<(String, String)>>,
    /// Number of owners in `held` that still held the same name when the node granted locks again.
    pub(crate) same: Option<usize>,
    /// Number of leases in `held` that the console saw run out before the node granted locks again.
    pub(crate) ran_out: Option<usize>,
}

/// The last examination of the nodes by the doctor, which checks them and explains what is wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct Examination {
    pub(crate) is_running: bool,
    pub(crate) at: Option<u64>,
    pub(crate) report: Option<Result<Report, String>>,
}

/// Numbers of names that the console does not keep, because there are too many. If a node has
/// several keys of a name, the name counts once for each of the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) locks: usize,
    pub(crate) elections: usize,
    pub(crate) keys: usize,
}

impl LeftOut {
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            locks: self.locks.max(other.locks),
            elections: self.elections.max(other.elections),
            keys: self.keys.max(other.keys),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ScanProgress {
    /// Number of complete rounds of the scan, each of which reads all keys.
    pub(crate) rounds: u64,
    /// Duration of the last complete scan.
    pub(crate) round: Option<Duration>,
    /// Number of keys that the present round of the scan has read, by node.
    pub(crate) progress: BTreeMap<String, u64>,
    /// Number of keys that the last complete scan has read, by node.
    pub(crate) totals: BTreeMap<String, u64>,
    pub(crate) names: usize,
}

impl Model {
    /// Returns true if the console has all names. Then a complete round of the scan has read a
    /// majority of the nodes, no name was left out, and rounds are so short that a new name is
    /// found soon.
    pub(crate) fn is_scanned(&self, left_out: usize) -> bool {
        let majority = 2 * self.unread.len() < self.votes.len();
        let is_short = self.scan.round.is_some_and(|round| round <= SHORT);
        self.scan.rounds > 0 && is_short && left_out == 0 && majority
    }

    pub(crate) fn voting(&self) -> usize {
        self.votes.iter().filter(|vote| vote.state == VoteState::Votes).count()
    }
}

/// Returns the earlier value of a time, such as the end of a lease, if the new value is close to
/// it. Each reading computes the time anew from the time that is left, so it would change with the
/// duration of the requests.
pub(crate) fn steady(earlier: Option<u64>, new: u64) -> u64 {
    earlier.filter(|earlier| earlier.abs_diff(new) < 400).unwrap_or(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_whole_only_if_new_names_are_found_soon() {
        let mut model = Model { votes: vec![Vote::new("a")], ..Model::default() };
        assert!(!model.is_scanned(0), "no round is complete");
        (model.scan.rounds, model.scan.round) = (1, Some(SHORT));
        assert!(model.is_scanned(0));
        assert!(!model.is_scanned(1));
        model.scan.round = Some(SHORT + Duration::from_secs(1));
        assert!(!model.is_scanned(0), "a name may be new since the round began");
    }
}
