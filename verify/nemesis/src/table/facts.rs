//! Facts about the Sentinel group of one row, in the order of time. They come from the watcher,
//! which uses plain Redis requests, and none from the library.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::event::{Event, EventKind, Nanos, WriteReply};

/// Majority of the three Sentinels.
const MAJORITY: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Masters that a majority of the Sentinels reported. Each has the time of the first such
    /// report.
    named: Vec<(Nanos, Option<Arc<str>>)>,
    answers: BTreeMap<Arc<str>, Vec<(Nanos, WriteReply)>>,
    quarantines: BTreeMap<Arc<str>, Vec<(Nanos, Nanos)>>,
    /// Address of each process, by the process's run id.
    processes: BTreeMap<Arc<str>, Arc<str>>,
    /// Promotions of each server: the times at which the server accepted its first write after
    /// being a replica. The server's very first accepted write counts, too. So do the times at
    /// which the Sentinels name a server again that they had replaced, and that was no replica
    /// since.
    promotions: BTreeMap<Arc<str>, Vec<Nanos>>,
}

impl Facts {
    /// Collects the facts from a log of events. The log must be sorted by time.
    pub(super) fn of(events: &[Event]) -> Self {
        let mut facts = Self::default();
        let mut votes = BTreeMap::new();
        for e in events {
            match &e.kind {
                EventKind::Named { sentinel, master } => {
                    votes.insert(*sentinel, Arc::clone(master));
                    let count = |m: &Arc<str>| votes.values().filter(|v| *v == m).count();
                    let chosen = votes.values().find(|m| count(m) >= MAJORITY).cloned();
                    if facts.named.last().is_none_or(|(_, before)| *before != chosen) {
                        facts.named.push((e.at, chosen));
                    }
                }
                EventKind::Answers { server, to_write } => {
                    facts.answers.entry(Arc::clone(server)).or_default().push((e.at, *to_write));
                }
                EventKind::Quarantine { server, from, ends } if *ends > 0 => {
                    let list = facts.quarantines.entry(Arc::clone(server)).or_default();
                    list.push((*from, *ends));
                }
                EventKind::Process { server, run_id } => {
                    facts.processes.insert(Arc::clone(run_id), Arc::clone(server));
                }
                _ => {}
            }
        }
        for (server, answers) in &facts.answers {
            let mut all = promotions(answers);
            all.extend(facts.returns(server, answers));
            all.sort_unstable();
            facts.promotions.insert(Arc::clone(server), all);
        }
        facts
    }

    /// Returns the times at which the Sentinels promoted a server that called itself a master all
    /// the time, so that nothing changed there.
    fn returns(&self, server: &str, answers: &[(Nanos, WriteReply)]) -> Vec<Nanos> {
        let mut named = self.named.iter().filter(|(_, master)| master.as_deref() == Some(server));
        let Some((first, _)) = named.next() else { return Vec::new() };
        // Its first write may be seen later than its first name.
        let replica = |until: Nanos| {
            let since = |at: Nanos| (*first..=until).contains(&at);
            answers.iter().any(|(at, a)| *a == WriteReply::Replica && since(*at))
        };
        named.map(|(at, _)| *at).filter(|at| !replica(*at)).collect()
    }

    /// Returns the latest master that a majority of the Sentinels reported, and the time of the
    /// first such report.
    pub(super) fn master(&self) -> Option<(Nanos, &Arc<str>)> {
        let (at, master) = self.named.last()?;
        Some((*at, master.as_ref()?))
    }

    pub(super) fn named_at(&self, at: Nanos) -> Option<&Arc<str>> {
        self.named.iter().rev().find(|(from, _)| *from <= at)?.1.as_ref()
    }

    pub(super) fn address(&self, run_id: &str) -> Option<&Arc<str>> {
        self.processes.get(run_id)
    }

    /// Returns the time at which a server last began to accept writes. For a former replica, this
    /// is the end of its time as a replica. For another server, this is the end of its silence
    /// after the fault at `struck`.
    pub(super) fn writable(&self, server: &str, struck: Nanos) -> Option<Nanos> {
        let answers = self.answers.get(server)?;
        if answers.iter().any(|(_, a)| *a == WriteReply::Replica) {
            return self.promotions.get(server)?.last().copied();
        }
        let silent = answers.iter().position(|(at, a)| *at > struck && *a == WriteReply::Silent)?;
        answers[silent..].iter().find(|(_, a)| *a == WriteReply::Yes).map(|(at, _)| *at)
    }

    pub(super) fn quarantine_ends(&self, server: &str) -> Option<Nanos> {
        self.quarantines.get(server)?.last().map(|(_, ends)| *ends)
    }

    /// Returns true if a server was in quarantine from the request at `since` to the reply at `at`.
    ///
    /// The beginning and the end of a quarantine are in whole milliseconds. So times within 1 or 2
    /// ms of the beginning or the end count as outside.
    pub(super) fn in_quarantine(&self, server: &str, since: Nanos, at: Nanos) -> bool {
        const MS: Nanos = 1_000_000;
        let within = |(from, ends): &(Nanos, Nanos)| since > from + MS && at + 2 * MS < *ends;
        self.quarantines.get(server).is_some_and(|list| list.iter().any(within))
    }

    /// Returns true if the server had been replaced for longer than `window`, all the time from
    /// `since` to `at`. A server is replaced if another server has begun to accept writes and this
    /// server was not promoted later.
    ///
    /// A request may wait until the new master accepts it. The watcher, the process that logs the
    /// servers' replies, may observe a promotion up to `LOOK` later than a client.
    pub(super) fn replaced(&self, server: &str, window: Nanos, since: Nanos, at: Nanos) -> bool {
        const LOOK: Nanos = 300_000_000;
        let own = self.promotions.get(server).map_or(&[][..], Vec::as_slice);
        let others = self.promotions.iter().filter(|(other, _)| &***other != server);
        others.flat_map(|(_, list)| list).any(|begun| {
            begun + window < since && !own.iter().any(|own| own > begun && *own <= at + LOOK)
        })
    }

    pub(super) fn last_writes(&self) -> Vec<(&Arc<str>, Nanos)> {
        let last = |(server, answers)| {
            let pairs: &Vec<(Nanos, WriteReply)> = answers;
            let ends = pairs.windows(2).filter(|p| p[0].1 == WriteReply::Yes).map(|p| p[1].0);
            ends.map(move |at| (server, at)).collect::<Vec<_>>()
        };
        self.answers.iter().flat_map(last).collect()
    }

    pub(super) fn two_masters(&self, from: Nanos, end: Nanos) -> Nanos {
        let mut spans = Vec::new();
        for answers in self.answers.values() {
            for (n, (at, answer)) in answers.iter().enumerate() {
                if *answer == WriteReply::Yes {
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

    pub(super) fn silence(&self, server: &str) -> Nanos {
        let answers = self.answers.get(server).map_or(&[][..], Vec::as_slice);
        let silent = answers.windows(2).filter(|p| p[0].1 == WriteReply::Silent);
        silent.map(|p| p[1].0 - p[0].0).max().unwrap_or(0)
    }

    pub(super) fn first_promotion(&self, after: Nanos) -> Option<Nanos> {
        self.promotions.values().flatten().copied().filter(|at| *at > after).min()
    }

    pub(super) fn promoted_after(&self, at: Nanos) -> usize {
        self.promotions.values().flatten().filter(|p| **p > at).count()
    }
}

fn promotions(answers: &[(Nanos, WriteReply)]) -> Vec<Nanos> {
    let (mut replica, mut list) = (true, Vec::new());
    for (at, answer) in answers {
        match answer {
            WriteReply::Replica => replica = true,
            WriteReply::Yes if std::mem::take(&mut replica) => list.push(*at),
            _ => {}
        }
    }
    list
}
