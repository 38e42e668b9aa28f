//! Lines about the events of a history.

use std::fmt::Write as _;

use palisade::node::spi::Op;

use crate::world::{Event, State, World};

impl World<'_> {
    /// One line about an event.
    pub(crate) fn tell_event(&self, s: &State, event: Event, after: &State) -> String {
        let op = |c: usize, n: usize| {
            let message = self.links.get(s.links[c][n])[0];
            shown(&self.messages.get(message).request.op)
        };
        let mut line = format!("{:>2}  ", s.tick);
        let answer = |c: usize, n: usize| {
            let message = self.links.get(s.links[c][n])[0];
            let done = self.executed.get(&(s.nodes[n], message, self.reading(s, n)));
            done.map_or(String::new(), |(_, delivery)| {
                match &self.deliveries.get(*delivery).answer {
                    Ok(reply) => format!("{reply:?}"),
                    Err(e) => format!("{:?}", e.fault()),
                }
            })
        };
        let _ = match event {
            Event::Tick => write!(line, "a tick passes"),
            Event::Act(c, act) => write!(line, "client {c}: {act:?}"),
            Event::Arrives(c, n) => {
                write!(line, "client {c}, node {n}: {} -> {}", op(c, n), answer(c, n))
            }
            Event::AnswerStays(c, n) => {
                let answer = answer(c, n);
                write!(line, "client {c}, node {n}: {} -> {answer}, which is late", op(c, n))
            }
            Event::IsOvertaken(c, n) => {
                write!(line, "client {c}, node {n}: {} is overtaken", op(c, n))
            }
            Event::StrayArrives => {
                let (n, message) = s.stray.unwrap_or_default();
                let op = shown(&self.messages.get(message).request.op);
                write!(line, "node {n}: {op}, which was overtaken, arrives")
            }
            Event::AnswerArrives => {
                let (c, n, _) = s.late.unwrap_or_default();
                write!(line, "client {c}, node {n}: the late answer arrives")
            }
            Event::Dies(c) => write!(line, "client {c} dies"),
            Event::LosesData(n) => write!(line, "node {n} loses its data"),
            Event::GainsTick(n) => write!(line, "the clock of node {n} gains a tick"),
        };
        if after.ledger != s.ledger {
            let _ = write!(line, "  ({:?})", after.ledger);
        }
        line
    }
}

fn shown(op: &Op) -> String {
    match op {
        Op::Acquire { mode, owner, proposal, .. } => {
            format!("acquire {mode:?} by {owner:?} at {proposal}")
        }
        Op::Raise { owner, token, .. } | Op::RaiseClaim { owner, token, .. } => {
            format!("raise by {owner:?} to {token}")
        }
        Op::Extend { mode, owner, token, reassert, .. } => {
            let named = if reassert.is_some() { ", quarantine named" } else { "" };
            format!("extend {mode:?} by {owner:?} with {token}{named}")
        }
        Op::Release { owner, .. } => format!("release by {owner:?}"),
        Op::Claim(c) => format!("claim by {:?} at {}, force: {}", c.owner, c.proposal, c.force),
        Op::ExtendClaim { ballot, .. } => format!("extend claim by {:?}", ballot.owner),
        Op::Complete { ballot, value } => {
            format!("complete by {:?} with {}: {value:?}", ballot.owner, ballot.token)
        }
        Op::Unclaim { owner, end, .. } => format!("unclaim by {owner:?}, {end:?}"),
        other => format!("{other:?}"),
    }
}
