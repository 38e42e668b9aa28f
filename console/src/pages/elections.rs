//! The page `elections`: for each election the leader, the candidates, the terms, and the times
//! without a leader.

use palisade::election::{Candidate, Leader};
use serde_json::{Value, json};

use super::{NOT_READ, clean, clock};
use crate::history::millis;
use crate::model::{ElectionRow, Model};

pub(super) fn page(model: &Model) -> Value {
    let all: Vec<_> = model.elections.iter().map(|(name, row)| election(name, row)).collect();
    let left_out = model.left_out.elections;
    let whole = model.is_scanned(left_out) && model.elections.values().all(|row| row.at > 0);
    json!({ "total": all.len(), "elections": all, "whole": whole, "left_out": left_out })
}

fn election(name: &str, row: &ElectionRow) -> Value {
    let state = match (&row.unknown, &row.leader) {
        _ if row.at == 0 => "unknown",
        (Some(_), _) => "unknown",
        (None, Some(_)) => "led",
        (None, None) => "leaderless",
    };
    let terms = row.terms.iter().map(|term| {
        json!({ "term": term.number.to_string(), "host": clean(&term.host), "pid": term.pid,
                "value": clean(&term.value), "from_ms": term.from, "to_ms": term.to,
                "seen_from_start": term.seen_from_start })
    });
    let gaps = row.gaps.iter().map(|(from, to)| json!({ "from_ms": from, "to_ms": to }));
    json!({
        "name": name, "state": state, "sentence": sentence(row),
        "leader": row.leader.as_ref().map(|leader| leader_json(leader, row.until)),
        "candidates": row.candidates.iter().map(|one| candidate(one, row.at)).collect::<Vec<_>>(),
        "terms": terms.collect::<Vec<_>>(), "gaps": gaps.collect::<Vec<_>>(),
    })
}

fn sentence(row: &ElectionRow) -> String {
    match (&row.unknown, &row.leader) {
        _ if row.at == 0 => NOT_READ.to_owned(),
        (Some(why), _) => format!("not known: {}", clean(why)),
        (None, Some(leader)) => {
            let (host, since) = (clean(&leader.identity.host), clock(millis(leader.since)));
            format!("{host} (pid {}) leads since {since}", leader.identity.pid)
        }
        (None, None) => {
            let since = row.gaps.back().map(|(from, _)| format!(" since {}", clock(*from)));
            format!("there is no leader{}", since.unwrap_or_default())
        }
    }
}

pub(super) fn leader_json(leader: &Leader, until: u64) -> Value {
    json!({
        "term": leader.term.to_string(), "value": clean(&leader.value),
        "host": clean(&leader.identity.host), "pid": leader.identity.pid,
        "boot": format!("{:x}", leader.identity.boot), "since_ms": millis(leader.since),
        "until_ms": until, "priority": leader.priority,
        "drain_ms": leader.drain.as_millis() as u64,
    })
}

fn candidate(one: &Candidate, at: u64) -> Value {
    json!({
        "leads": one.term.is_some(), "term": one.term.map(|term| term.to_string()),
        "value": one.value.as_deref().map(clean), "priority": one.priority,
        "eligible": one.eligible, "since_ms": millis(one.since),
        "host": clean(&one.identity.host), "pid": one.identity.pid,
        "boot": format!("{:x}", one.identity.boot),
        // Each reading of the nodes computes the end of the candidate's record anew. Whole seconds
        // hide the small differences.
        "until_ms": (at + one.remaining.as_millis() as u64) / 1_000 * 1_000,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_election_that_was_not_read_yet_is_not_leaderless() {
        let new = election("e", &ElectionRow::default());
        assert_eq!((&new["state"], &new["sentence"]), (&json!("unknown"), &json!(NOT_READ)));
        let read = election("e", &ElectionRow { at: 1, ..ElectionRow::default() });
        assert_eq!(
            (&read["state"], &read["sentence"]),
            (&json!("leaderless"), &json!("there is no leader"))
        );
    }
}
