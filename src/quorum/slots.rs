//! One attempt to acquire a permit: the same slot on a majority of the nodes (semaphore 7, 8). If a
//! majority gave different slots, the other nodes are asked to move the owner to the one that most
//! gave; the machine of a lock decides about it. A winner's [`strays`](AcquireSlot::strays) may
//! still have the owner in another slot.

use crate::op::{LockMode, Op, Reply};
use crate::quorum::acquire::{Acquire, Loss};
use crate::quorum::{Answer, Machine, Progress, majority};
use crate::time::Moment;
use crate::token::FencingToken;

pub type Outcome = Result<(FencingToken, u16), Loss>;

type Step = Progress<Outcome>;

#[derive(Clone, Debug)]
pub struct AcquireSlot {
    inner: Acquire,
    acquire: Op,
    first: Vec<Option<Answer>>,
    hedge: Option<Moment>,
    /// `None` before the choice, which does not change.
    target: Option<u16>,
    moves: Vec<bool>,
    /// It has the owner in another slot, and was not asked to move.
    strays: Vec<bool>,
}

impl AcquireSlot {
    pub fn new(inner: Acquire, acquire: Op) -> Self {
        let n = inner.n();
        let (first, moves, strays) = (vec![None; n], vec![false; n], vec![false; n]);
        Self { inner, acquire, first, hedge: None, target: None, moves, strays }
    }

    pub fn largest(&self) -> Option<u64> {
        self.inner.largest()
    }

    /// Those that gave another slot and were not asked to move the owner, and those without an
    /// answer, if the semaphore has several slots.
    pub fn strays(&self) -> impl Iterator<Item = usize> {
        let may_choose = match &self.acquire {
            Op::Acquire { mode, .. } => mode.slots().is_some_and(|slots| slots.of > 1),
            _ => false,
        };
        let is_stray =
            move |node: &usize| self.strays[*node] || may_choose && self.first[*node].is_none();
        (0..self.strays.len()).filter(is_stray)
    }

    /// Of several, that of the node with the lowest number.
    fn favourite(&self) -> Option<(u16, usize)> {
        let slots = || self.first.iter().filter_map(|answer| slot_of(answer.as_ref()));
        let votes = |slot| slots().filter(|other| *other == slot).count();
        slots().map(|slot| (slot, votes(slot))).rev().max_by_key(|(_, votes)| *votes)
    }

    fn decide(&mut self, now: Moment) -> Step {
        let need = majority(self.first.len());
        let given = self.first.iter().filter(|answer| slot_of(answer.as_ref()).is_some()).count();
        let Some((slot, votes)) = self.favourite().filter(|_| given >= need) else {
            return self.lose(now);
        };
        let waits = now < self.inner.by();
        let silent = self.first.iter().filter(|answer| waits && answer.is_none()).count();
        if votes < need && votes + silent >= need {
            let until = *self.hedge.get_or_insert(self.inner.hedge(now));
            if now < until {
                return Step::Wait(until.min(self.inner.by()));
            }
        }
        self.aim(now, slot, votes < need)
    }

    /// Too few to win, whichever slots they gave.
    fn lose(&mut self, now: Moment) -> Step {
        self.inner = self.inner.anew();
        for (node, answer) in self.first.iter().enumerate() {
            if let Some(answer) = answer {
                self.inner.record(node, &grant(answer));
            }
        }
        let step = self.inner.on_time(now);
        self.with_slot(step, Vec::new())
    }

    /// With `again`, the time for answers starts again.
    fn aim(&mut self, now: Moment, slot: u16, again: bool) -> Step {
        self.target = Some(slot);
        self.inner = self.inner.anew();
        self.inner.set_slot(slot);
        let mut strays = Vec::new();
        for (node, answer) in self.first.iter().enumerate() {
            match (answer, slot_of(answer.as_ref())) {
                (_, Some(other)) if other != slot => strays.push(node),
                (Some(answer), _) => self.inner.record(node, &grant(answer)),
                (None, _) => {}
            }
        }
        for node in &strays {
            self.strays[*node] = true;
        }
        if again {
            self.inner.ask_again(now);
        }
        let step = self.inner.on_time(now);
        if matches!(step, Progress::Decided(_)) {
            return self.with_slot(step, Vec::new());
        }
        self.with_slot(step, strays)
    }

    fn with_slot(
        &mut self,
        step: Progress<Result<FencingToken, Loss>>,
        movers: Vec<usize>,
    ) -> Step {
        let slot = self.target.unwrap_or_default();
        let mut asks: Vec<_> = Vec::new();
        for node in movers {
            (self.strays[node], self.moves[node]) = (false, true);
            let mut op = self.acquire.clone();
            // The op still has the caller's place.
            if let Op::Acquire { mode: LockMode::Slot(slots), .. } = &mut op {
                *slots = slots.exactly(slot);
            }
            asks.push((node, op));
        }
        match step {
            Progress::Decided(result) => Step::Decided(result.map(|token| (token, slot))),
            Progress::Wait(until) if asks.is_empty() => Step::Wait(until),
            Progress::Wait(until) => Step::Send(asks, until),
            Progress::Send(raises, until) => {
                asks.extend(raises);
                Step::Send(asks, until)
            }
        }
    }
}

fn slot_of(answer: Option<&Answer>) -> Option<u16> {
    match answer {
        Some(Ok(Reply::Permit { slot, .. })) => Some(*slot),
        _ => None,
    }
}

fn grant(answer: &Answer) -> Answer {
    match answer {
        Ok(Reply::Permit { fence, .. }) => Ok(Reply::Granted { fence: *fence }),
        other => other.clone(),
    }
}

impl Machine for AcquireSlot {
    type Decision = Outcome;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Step {
        let Some(target) = self.target else {
            self.first[node].get_or_insert_with(|| reply.clone());
            return self.decide(now);
        };
        self.first[node].get_or_insert_with(|| reply.clone());
        let moved = std::mem::take(&mut self.moves[node]);
        let step = match reply {
            Ok(Reply::Permit { slot, .. }) if *slot != target => {
                // Arrived after the slot was chosen. A node is asked to move the owner only once.
                self.strays[node] = true;
                let step = self.inner.on_time(now);
                let movers = if moved { Vec::new() } else { vec![node] };
                return self.with_slot(step, movers);
            }
            Ok(Reply::Held { .. }) if moved => {
                self.strays[node] = true;
                self.inner.on_reply(now, node, reply)
            }
            reply => self.inner.on_reply(now, node, &grant(reply)),
        };
        self.with_slot(step, Vec::new())
    }

    fn on_time(&mut self, now: Moment) -> Step {
        if self.target.is_none() {
            return self.decide(now);
        }
        let step = self.inner.on_time(now);
        self.with_slot(step, Vec::new())
    }
}
