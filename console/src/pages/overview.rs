//! The page `overview`: which nodes vote, if they are a majority, and the latest entries of the
//! history.

use palisade::Ability;
use palisade_ops::KeyState;
use serde_json::{Value, json};

use super::clock;
use crate::history::now_ms;
use crate::model::{LeftOut, LockRow, Model, View, Vote, VoteState};
use crate::start::Shared;

pub(super) fn page(shared: &Shared, model: &Model) -> Value {
    let (state, text) = verdict(model);
    let ability = |of: Option<Ability>| match of {
        Some(Ability::Now) => "now",
        Some(Ability::After(_)) => "after",
        _ => "unknown",
    };
    let (happened, _) = shared.history.latest(None, 20, |_| true);
    json!({
        "verdict": { "state": state, "text": text },
        "needed": model.needed, "voting": model.voting(),
        "locks_now": ability(model.abilities.map(|(locks, _)| locks)),
        "new_keys_now": ability(model.abilities.map(|(_, keys)| keys)),
        "votes": model.votes.iter().map(vote).collect::<Vec<_>>(),
        "counts": counts(model), "other_prefixes": model.other_prefixes,
        "happened": happened, "poll": super::poll(shared, model),
    })
}

pub(super) fn vote(vote: &Vote) -> Value {
    json!({
        "node": vote.node, "server": server(vote), "state": vote.state.word(),
        "voting": vote.state == VoteState::Votes, "why": vote.why, "until_ms": vote.until,
        "since_ms": vote.since, "latency_ms": vote.latency.map(millis),
    })
}

/// Returns a length of time in ms with two digits behind the point.
pub(super) fn millis(span: std::time::Duration) -> f64 {
    (span.as_secs_f64() * 100_000.0).round() / 100.0
}

/// Returns the address in the node's name; `None` if the name does not end with an address.
fn server(vote: &Vote) -> Option<&str> {
    let at = vote.node.rsplit(' ').next()?;
    let (_, port) = at.rsplit_once(':')?;
    port.bytes().all(|b| b.is_ascii_digit()).then_some(at)
}

/// Explains in a sentence which part of the nodes votes, and why the others do not.
fn verdict(model: &Model) -> (&'static str, String) {
    let (all, voting, needed) = (model.votes.len(), model.voting(), model.needed);
    if all == 0 {
        return ("unknown", "the nodes were not asked yet".to_owned());
    }
    let whys =
        model.votes.iter().filter(|vote| vote.state != VoteState::Votes).map(|vote| {
            match (&vote.why, vote.state) {
                (Some(why), VoteState::Quarantine) => why.clone(),
                (Some(why), _) => format!("{} does not vote: {why}", vote.node),
                (None, _) => format!("{} is not known", vote.node),
            }
        });
    let whys: Vec<String> = whys.collect();
    let head = format!("{voting} of {all} votes");
    if voting == all {
        return ("ok", format!("{head}: locks are granted"));
    }
    let whys = whys.join("; ");
    if voting >= needed {
        return ("degraded", format!("{head}; {whys}"));
    }
    let until = match model.abilities {
        Some((Ability::After(left), _)) => {
            let at = clock(now_ms() + left.as_millis() as u64);
            format!(", and no lock is granted until {at}")
        }
        _ => format!(", and no lock is granted until {needed} nodes vote"),
    };
    ("down", format!("{head}{until}; {whys}"))
}

fn counts(model: &Model) -> Value {
    let held = |row: &LockRow| match &row.view {
        Some(View::Lock(seen)) => (usize::from(seen.holder().is_some()), seen.reader_count()),
        _ => (0, 0),
    };
    let all: Vec<_> = model.locks.values().map(held).collect();
    let semaphores = model.locks.iter().filter(|(id, _)| id.is_semaphore).count();
    let waiting = model.locks.values().filter_map(|row| row.waiters.as_ref()).map(Vec::len);
    let key = |state: KeyState| {
        let is = |row: &&crate::model::KeyRow| {
            row.facts.as_ref().is_some_and(|facts| facts.state == state)
        };
        model.keys.values().filter(is).count()
    };
    json!({
        "locks": all.iter().map(|(locks, _)| locks).sum::<usize>(),
        "readers": all.iter().map(|(_, readers)| readers).sum::<usize>(),
        "semaphores": semaphores, "waiting": waiting.sum::<usize>(),
        "elections": model.elections.len(), "jobs": model.jobs.len(),
        "running": key(KeyState::Running), "parked": key(KeyState::Lapsed),
        "unsettled": key(KeyState::Unsettled), "done": key(KeyState::Stored),
        "incidents": model.incidents, "whole": is_whole(model),
    })
}

fn is_whole(model: &Model) -> bool {
    let LeftOut { locks, elections, keys } = model.left_out;
    let is_known = |row: &LockRow| {
        row.view.as_ref().is_some_and(|view| super::locks::state(row, &view.holders()) != "unknown")
    };
    model.is_scanned(locks + elections + keys)
        && model.locks_unchecked == 0
        && model.locks.values().all(is_known)
        && model.keys.values().all(|row| row.facts.is_some())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{KeyRow, LockId};

    #[test]
    fn counts_are_whole_after_a_round_that_left_nothing_out() {
        let mut model = model(&[VoteState::Votes]);
        assert_eq!(counts(&model)["whole"], false, "no round is complete");
        (model.scan.rounds, model.scan.round) = (1, Some(Duration::from_secs(1)));
        assert_eq!(counts(&model)["whole"], true);
        model.left_out.keys = 1;
        assert_eq!(counts(&model)["whole"], false);
        model.left_out.keys = 0;
        let key = ("orders".to_owned(), "7".to_owned());
        model.keys.insert(key, KeyRow::default());
        assert_eq!(counts(&model)["whole"], false, "a key was not read yet");
        model.keys.clear();
        let id = LockId { name: "deploy".to_owned(), is_semaphore: false };
        model.locks.insert(id, LockRow::default());
        assert_eq!(counts(&model)["whole"], false, "a lock was not read yet");
    }

    fn model(states: &[VoteState]) -> Model {
        let vote = |(n, state): (usize, &VoteState)| {
            let node = char::from(b'A' + n as u8).to_string();
            let mut vote = Vote::new(&node);
            vote.state = *state;
            if *state != VoteState::Votes {
                vote.why = Some(format!(
                    "{node} grants nothing until 12:03:20 UTC, because it \
                                         came back without its last 1.3 s"
                ));
            }
            vote
        };
        let votes = states.iter().enumerate().map(vote).collect();
        Model { votes, needed: 2, ..Model::default() }
    }

    #[test]
    fn a_verdict_explains_itself_in_a_sentence() {
        use VoteState::{Quarantine, Unreachable, Votes};
        assert_eq!(
            verdict(&model(&[Votes, Votes, Votes])),
            ("ok", "3 of 3 votes: locks are granted".to_owned())
        );
        assert_eq!(
            verdict(&model(&[Votes, Votes, Quarantine])),
            (
                "degraded",
                "2 of 3 votes; C grants nothing until 12:03:20 UTC, because it came back without \
                 its last 1.3 s"
                    .to_owned()
            )
        );
        let (state, text) = verdict(&model(&[Votes, Unreachable, Unreachable]));
        assert_eq!(state, "down");
        assert!(text.starts_with("1 of 3 votes, and no lock is granted until 2 nodes vote; B"));
        assert_eq!(verdict(&model(&[])).0, "unknown");
    }
}
