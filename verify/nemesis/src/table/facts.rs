//! What the watcher saw, brought in order: who was named when, who took writes when, who was in
//! quarantine. Nothing here comes from the library.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::event::{Event, Nanos, ToWrite, What};

/// So many of three Sentinels.
const MAJORITY: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Whom a majority of the Sentinels named, from when on.
    named: Vec<(Nanos, Option<Arc<str>>)>,
    answers: BTreeMap<Arc<str>, Vec<(Nanos, ToWrite)>>,
    quarantines: BTreeMap<Arc<str>, Vec<(Nanos, Nanos)>>,
    /// Which address a process had.
    processes: BTreeMap<Arc<str>, Arc<str>>,
    /// When a server took its first write after it had been a replica; at its first yes of all.
    promotions: BTreeMap<Arc<str>, Vec<Nanos>>,
}

impl Facts {
    /// From a log in the order of time.
    pub(super) fn of(events: &[Event]) -> Self {
        let mut facts = Self::default();
        let mut votes = BTreeMap::new();
        for e in events {
            match &e.what {
                What::Named { sentinel, master } => {
                    votes.insert(*sentinel, Arc::clone(master));
                    let count = |m: &Arc<str>| votes.values().filter(|v| *v == m).count();
                    let chosen = votes.values().find(|m| count(m) >= MAJORITY).cloned();
                    if facts.named.last().is_none_or(|(_, before)| *before != chosen) {
                        facts.named.push((e.at, chosen));
                    }
                }
                What::Answers { server, to_write } => {
                    facts.answers.entry(Arc::clone(server)).or_default().push((e.at, *to_write));
                }
                What::Quarantine { server, from, ends } if *ends > 0 => {
                    let list = facts.quarantines.entry(Arc::clone(server)).or_default();
                    list.push((*from, *ends));
                }
                What::Process { server, run_id } => {
                    facts.processes.insert(Arc::clone(run_id), Arc::clone(server));
                }
                _ => {}
            }
        }
        for (server, answers) in &facts.answers {
            facts.promotions.insert(Arc::clone(server), promotions(answers));
        }
        facts
    }

    /// The last master that a majority named, and since when.
    pub(super) fn master(&self) -> Option<(Nanos, &Arc<str>)> {
        let (at, master) = self.named.last()?;
        Some((*at, master.as_ref()?))
    }

    /// The master that was named at that moment.
    pub(super) fn named_at(&self, at: Nanos) -> Option<&Arc<str>> {
        self.named.iter().rev().find(|(from, _)| *from <= at)?.1.as_ref()
    }

    /// The address of a process.
    pub(super) fn address(&self, run_id: &str) -> Option<&Arc<str>> {
        self.processes.get(run_id)
    }

    /// When a server last began to take writes: after it was a replica, or after `struck` if it
    /// never was one.
    pub(super) fn writable(&self, server: &str, struck: Nanos) -> Option<Nanos> {
        let answers = self.answers.get(server)?;
        if answers.iter().any(|(_, a)| *a == ToWrite::Replica) {
            return self.promotions.get(server)?.last().copied();
        }
        let silent = answers.iter().position(|(at, a)| *at > struck && *a == ToWrite::Silent)?;
        answers[silent..].iter().find(|(_, a)| *a == ToWrite::Yes).map(|(at, _)| *at)
    }

    /// When its last quarantine ends.
    pub(super) fn quarantine_ends(&self, server: &str) -> Option<Nanos> {
        self.quarantines.get(server)?.last().map(|(_, ends)| *ends)
    }

    /// Whether a server that was asked at `since` and answered at `at` was in quarantine all the
    /// time. Whole milliseconds on both ends.
    pub(super) fn in_quarantine(&self, server: &str, since: Nanos, at: Nanos) -> bool {
        const MS: Nanos = 1_000_000;
        let within = |(from, ends): &(Nanos, Nanos)| since > from + MS && at + 2 * MS < *ends;
        self.quarantines.get(server).is_some_and(|list| list.iter().any(within))
    }

    /// Whether from `since` to `at` a server was replaced longer than `window` ago: another had
    /// begun to take writes, and this one had not been promoted since. A request waits until the
    /// new master takes it, and the watcher may see that master a look later than a client does.
    pub(super) fn replaced(&self, server: &str, window: Nanos, since: Nanos, at: Nanos) -> bool {
        const LOOK: Nanos = 300_000_000;
        let own = self.promotions.get(server).map_or(&[][..], Vec::as_slice);
        let others = self.promotions.iter().filter(|(other, _)| &***other != server);
        others.flat_map(|(_, list)| list).any(|begun| {
            begun + window < since && !own.iter().any(|own| own > begun && *own <= at + LOOK)
        })
    }

    /// The moments of the last yes before another answer, of all servers.
    pub(super) fn last_writes(&self) -> Vec<(&Arc<str>, Nanos)> {
        let last = |(server, answers)| {
            let pairs: &Vec<(Nanos, ToWrite)> = answers;
            let ends = pairs.windows(2).filter(|p| p[0].1 == ToWrite::Yes).map(|p| p[1].0);
            ends.map(move |at| (server, at)).collect::<Vec<_>>()
        };
        self.answers.iter().flat_map(last).collect()
    }

    /// For how long after `from` two servers took plain writes at the same time.
    pub(super) fn two_masters(&self, from: Nanos, end: Nanos) -> Nanos {
        let mut spans = Vec::new();
        for answers in self.answers.values() {
            for (n, (at, answer)) in answers.iter().enumerate() {
                if *answer == ToWrite::Yes {
                    let to = answers.get(n + 1).map_or(end, |next| next.0);
                    spans.push(((*at).max(from), to));
                }
            }
        }
        spans.retain(|(from, to)| from < to);
        spans.sort_unstable();
        let mut until = 0;
        let mut both = 0;
        for (from, to) in spans {
            both += until.min(to).saturating_sub(from);
            until = until.max(to);
        }
        both
    }

    /// For how long a server gave no answer at a stretch, at most.
    pub(super) fn silence(&self, server: &str) -> Nanos {
        let answers = self.answers.get(server).map_or(&[][..], Vec::as_slice);
        let silent = answers.windows(2).filter(|p| p[0].1 == ToWrite::Silent);
        silent.map(|p| p[1].0 - p[0].0).max().unwrap_or(0)
    }

    /// When another server first took writes after the moment.
    pub(super) fn first_promotion(&self, after: Nanos) -> Option<Nanos> {
        self.promotions.values().flatten().copied().filter(|at| *at > after).min()
    }

    /// How often any server was promoted after the moment.
    pub(super) fn promoted_after(&self, at: Nanos) -> usize {
        self.promotions.values().flatten().filter(|p| **p > at).count()
    }
}

fn promotions(answers: &[(Nanos, ToWrite)]) -> Vec<Nanos> {
    let (mut replica, mut list) = (true, Vec::new());
    for (at, answer) in answers {
        match answer {
            ToWrite::Replica => replica = true,
            ToWrite::Yes if std::mem::take(&mut replica) => list.push(*at),
            _ => {}
        }
    }
    list
}
