//! Leaders and candidates of elections, and the terms that the console saw.

use futures_util::future::{join, join_all};
use palisade::election::{Candidate, Leader};

use crate::history::{Entry, Level, millis, now_ms};
use crate::model::{ElectionRow, Term, steady};
use crate::start::Shared;

/// Number of terms, and of gaps without a leader, that are kept of each election.
const KEPT: usize = 50;

/// Leader and candidates of an election, as the nodes reported them.
pub(super) struct Seen {
    name: String,
    leader: Result<Option<Leader>, String>,
    candidates: Option<Vec<Candidate>>,
}

pub(super) async fn read(shared: &Shared, names: Vec<String>) -> Vec<Seen> {
    let one = |name: String| async move {
        let election = match shared.redlock.election(&name).build() {
            Ok(election) => election,
            Err(e) => return Seen { name, leader: Err(e.to_string()), candidates: None },
        };
        let (leader, candidates) = join(election.leader(), election.candidates()).await;
        Seen { name, leader: leader.map_err(|e| e.to_string()), candidates: candidates.ok() }
    };
    join_all(names.into_iter().map(one)).await
}

/// Stores the leaders in the console's model, and adds an entry to the console's history of events
/// for each change since the nodes were last read.
pub(super) fn note(shared: &Shared, all: Vec<Seen>) {
    for seen in all {
        let entry = {
            let mut model = shared.model();
            let Some(row) = model.elections.get_mut(&seen.name) else { continue };
            row.note(&seen)
        };
        shared.all_happened(entry);
    }
}

impl ElectionRow {
    fn note(&mut self, seen: &Seen) -> Option<Entry> {
        let now = now_ms();
        let is_first = self.at == 0;
        self.at = now;
        if let Some(candidates) = &seen.candidates {
            self.candidates.clone_from(candidates);
        }
        let leader = match &seen.leader {
            Ok(leader) => leader,
            Err(why) => {
                self.unknown = Some(why.clone());
                return None;
            }
        };
        self.unknown = None;
        let before = self.leader.as_ref().map(|leader| leader.term);
        let is_same = before == leader.as_ref().map(|leader| leader.term);
        self.leader.clone_from(leader);
        let Some(leader) = leader else {
            let is_new = before.is_some() || is_first;
            if is_new {
                self.end_term(now);
                self.gaps.push_back((now, None));
                self.bound();
            }
            let text = format!("election {:?} has no leader", seen.name);
            let entry = Entry::of(Level::Warn, "leaderless", &seen.name, text);
            return (is_new && !is_first).then_some(entry);
        };
        let remaining = leader.remaining.as_millis() as u64;
        self.until = steady(Some(self.until), now + remaining);
        if is_same {
            if let Some(term) = self.terms.back_mut() {
                term.value.clone_from(&leader.value);
            }
            return None;
        }
        let from = millis(leader.since);
        self.end_term(from.min(now));
        if let Some((_, to @ None)) = self.gaps.back_mut() {
            *to = Some(now);
        }
        let (host, pid) = (leader.identity.host.clone(), leader.identity.pid);
        self.terms.push_back(Term {
            number: leader.term.get(),
            host: host.clone(),
            pid,
            value: leader.value.clone(),
            from,
            to: None,
            seen_from_start: !is_first,
        });
        self.bound();
        let (name, term) = (&seen.name, leader.term);
        let text = format!("{host} (pid {pid}) leads election {name:?}, term {term}");
        (!is_first).then(|| Entry::of(Level::Info, "leader", name, text))
    }

    fn end_term(&mut self, at: u64) {
        if let Some(term) = self.terms.back_mut() {
            term.to = term.to.or(Some(at.max(term.from)));
        }
    }

    fn bound(&mut self) {
        while self.terms.len() > KEPT {
            self.terms.pop_front();
        }
        while self.gaps.len() > KEPT {
            self.gaps.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_without_a_leader_is_a_gap() {
        let vacant = || Seen { name: "e".to_owned(), leader: Ok(None), candidates: None };
        let mut row = ElectionRow::default();
        assert!(row.note(&vacant()).is_none(), "the first look is no change");
        assert!(row.note(&vacant()).is_none());
        assert_eq!(row.gaps.len(), 1);
        let unknown = Seen { leader: Err("no quorum".to_owned()), ..vacant() };
        assert!(row.note(&unknown).is_none());
        assert_eq!(row.unknown.as_deref(), Some("no quorum"));
        assert_eq!(row.gaps.len(), 1, "an election that could not be read has no gap");
    }
}
