//! A caller of an idempotency key: what `client/claim.rs`, `idempotency/run.rs` and
//! `idempotency/store.rs` do around the machines.

use std::sync::Arc;
use std::time::Duration;

use palisade::internal::model::{
    Answer, Complete, Denied, Found, Grant, Look, Machine, Progress, Promise, Record, valid_until,
};
use palisade::node::spi::{ClaimEnd, LockMode, Op};
use palisade::{Durability, Moment};

use crate::bug::Bug;
use crate::client::{Act, Delivery, LOOK, News, Out, STORE, Tag, owner_token, token};
use crate::held::{Held, claim, key, unclaim, value_of};
use crate::spec::{GRACE, NODES, Now, RETENTION, Role, TTL};

#[derive(Clone, Debug, Default)]
pub(crate) struct KeyClient {
    calls: u8,
    /// Claims so far, each with an owner token of its own.
    claims: u8,
    at: Moment,
    seen: Option<u64>,
    phase: Phase,
}

#[derive(Clone, Debug, Default)]
#[expect(clippy::large_enum_variant, reason = "equal ones are kept once")]
enum Phase {
    #[default]
    Idle,
    Claiming(Claiming),
    Running(Running),
    Storing(Storing),
    Looking {
        machine: Look,
        value: u8,
        wait: Moment,
    },
}

#[derive(Clone, Debug)]
struct Claiming {
    machine: Record,
    grant: Grant,
    owner: u8,
    /// With `force`: to be stored if the claim finds no result.
    candidate: Option<u8>,
    proposal: u64,
    until: Moment,
    wait: Moment,
}

#[derive(Clone, Debug)]
struct Running {
    held: Held,
    extends: u8,
}

#[derive(Clone, Debug)]
struct Storing {
    held: Held,
    machine: Complete,
    value: u8,
    /// The handler of this caller has returned it.
    is_own: bool,
    /// Answers that came during the renewal.
    unread: Vec<(usize, Answer)>,
    wait: Moment,
}

impl KeyClient {
    fn role(now: &Now<'_>) -> (u8, u8, bool) {
        match now.spec.roles[now.me] {
            Role::Key { calls, extends, reruns } => (calls, extends, reruns),
            Role::Lock(_) => (0, 0, false),
        }
    }

    fn wait(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Idle => None,
            Phase::Claiming(claiming) => Some(claiming.wait),
            Phase::Running(running) => running.held.renewal.as_ref().map(|r| r.wait),
            Phase::Storing(storing) => {
                Some(storing.held.renewal.as_ref().map_or(storing.wait, |r| r.wait))
            }
            Phase::Looking { wait, .. } => Some(*wait),
        }
    }

    pub(crate) fn is_asking(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Running(_))
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.claims == 0
    }

    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    pub(crate) fn acts(&self, now: &Now<'_>) -> Vec<Act> {
        let at = self.at.max(now.at);
        let mut acts = Vec::new();
        match &self.phase {
            Phase::Idle if self.calls < Self::role(now).0 => acts.push(Act::Begin),
            Phase::Running(running) => {
                acts.extend([Act::Finish, Act::Fail]);
                let valid = at < running.held.until;
                if running.extends > 0 && running.held.renewal.is_none() && valid {
                    acts.push(Act::Extend);
                }
            }
            _ => {}
        }
        acts.extend(self.wait().filter(|wait| now.is_soon(at, *wait)).map(|_| Act::Timer));
        acts
    }

    pub(crate) fn act(&mut self, tick: &Now<'_>, act: Act) -> Out {
        let mut out = Out::default();
        match act {
            Act::Time => self.at = Moment::default(),
            Act::Timer => self.at = self.wait().unwrap_or_default(),
            _ => {}
        }
        let now = &Now { at: self.at.max(tick.at), ..*tick };
        match act {
            Act::Begin => {
                self.calls += 1;
                self.claim(now, None, &mut out);
            }
            Act::Extend => {
                if let Phase::Running(running) = &mut self.phase {
                    running.extends -= 1;
                    if let Some(result) = running.held.extend(now, &mut out) {
                        running.held.extended(now, &result);
                    }
                }
            }
            Act::Finish => {
                if let Phase::Running(running) = std::mem::take(&mut self.phase) {
                    let value = running.held.owner;
                    self.store(now, running.held, (value, true), &mut out);
                }
            }
            Act::Fail => {
                if let Phase::Running(Running { held, .. }) = std::mem::take(&mut self.phase) {
                    out.news.push(News::Undone);
                    let op = unclaim(held.owner, ClaimEnd::Repeatable);
                    out.give_back(&op, &held.grant, held.owner);
                }
            }
            Act::Time | Act::Timer => self.on_time(now, &mut out),
            Act::Downgrade | Act::Release => {}
        }
        out
    }

    /// The call ends without a result where it has claimed once more than all may call.
    fn claim(&mut self, now: &Now<'_>, candidate: Option<u8>, out: &mut Out) {
        if self.claims > Self::role(now).0 {
            return;
        }
        self.claims += 1;
        let owner = (now.me * 16) as u8 + self.claims;
        let until = valid_until(now.tick, TTL, now.spec.drift());
        let grant = Grant::new(NODES, LockMode::Exclusive, Durability::Primary);
        let raise = Op::RaiseClaim { key: key(), owner: owner_token(owner), token: token(0) };
        let mut machine =
            Record::new(NODES, now.tick, until, now.spec.node_deadline() + GRACE, raise);
        let proposal = now.proposal(self.seen);
        let tag = Tag { owner, round: 0, until };
        let deadline = now.deadline().min(until);
        out.send_all(&claim(owner, proposal, candidate.is_some()), tag, Some(deadline));
        let progress = machine.on_time(now.at);
        let wait = now.at;
        let claiming = Claiming { machine, grant, owner, candidate, proposal, until, wait };
        self.claiming(now, claiming, progress, out);
    }

    fn claiming(
        &mut self,
        now: &Now<'_>,
        mut claiming: Claiming,
        progress: Progress<Result<Promise, Denied>>,
        out: &mut Out,
    ) {
        let tag = Tag { owner: claiming.owner, round: 0, until: claiming.until };
        let decided = match progress {
            Progress::Wait(at) => {
                claiming.wait = at;
                self.phase = Phase::Claiming(claiming);
                return;
            }
            Progress::Send(asks, at) => {
                let deadline = Some(now.deadline().min(claiming.until));
                for (node, op) in asks {
                    out.send(node, op, tag, deadline);
                }
                claiming.wait = at;
                self.phase = Phase::Claiming(claiming);
                return;
            }
            Progress::Decided(decided) => decided,
        };
        let Claiming { machine, grant, owner, candidate, proposal, until, .. } = claiming;
        now.saw(&mut self.seen, machine.largest(), proposal);
        self.phase = Phase::Idle;
        let (_, extends, reruns) = Self::role(now);
        let back = unclaim(owner, ClaimEnd::Undone);
        let promise = match decided {
            Err(denied) => {
                out.undo(now, &back, &grant, owner);
                match denied {
                    Denied::Replay(value) => {
                        out.news.push(News::Saw(value.map_or(0, |bytes| bytes[0])));
                        self.calls = u8::MAX;
                    }
                    Denied::Repair(seen) if now.spec.has(Bug::ResultOfOneNode) => {
                        out.news.push(News::Saw(value_of(&seen)));
                    }
                    Denied::Repair(seen) if candidate.is_none() => {
                        self.claim(now, Some(value_of(&seen)), out);
                    }
                    Denied::Repair(_) | Denied::Refused(_) => {}
                }
                return;
            }
            Ok(promise) => promise,
        };
        let adopt = promise.adopt.as_ref().filter(|_| !now.spec.has(Bug::NothingAdopted));
        let is_forgotten = promise.forgotten.is_some();
        let held = Held { owner, token: promise.token, grant, until, renewal: None };
        match (candidate, adopt) {
            // `store` may not be sure that there was no other result.
            (Some(_), _) if is_forgotten && !reruns => out.give_back(&back, &held.grant, owner),
            (Some(candidate), adopt) => {
                let value = adopt.map_or(candidate, value_of);
                self.store(now, held, (value, false), out);
            }
            (None, Some(seen)) => {
                out.give_back(&back, &held.grant, owner);
                self.claim(now, Some(value_of(seen)), out);
            }
            (None, None) => {
                let doubt = promise.attempt > 1 || is_forgotten;
                if doubt && !reruns && !now.spec.has(Bug::AttemptsIgnored) || now.at >= until {
                    out.give_back(&back, &held.grant, owner);
                } else {
                    out.news.push(News::Ran);
                    self.phase = Phase::Running(Running { held, extends });
                }
            }
        }
    }

    fn store(&mut self, now: &Now<'_>, mut held: Held, (value, is_own): (u8, bool), out: &mut Out) {
        held.renewal = None;
        let op = Op::Complete { ballot: held.ballot(), value: Some(Arc::from([value])) };
        let tag = Tag { owner: held.owner, round: STORE, until: Moment::default() };
        out.send_all(&op, tag, Some(now.deadline()));
        let mut machine = Complete::new(NODES, op, now.tick + 2 * now.spec.node_deadline());
        let progress = machine.on_time(now.at);
        let (unread, wait) = (Vec::new(), now.at);
        let storing = Storing { held, machine, value, is_own, unread, wait };
        self.storing(now, storing, progress, out);
    }

    fn storing(
        &mut self,
        now: &Now<'_>,
        mut storing: Storing,
        mut progress: Progress<<Complete as Machine>::Decision>,
        out: &mut Out,
    ) {
        let tag = Tag { owner: storing.held.owner, round: STORE, until: Moment::default() };
        loop {
            let decided = match progress {
                Progress::Wait(at) => {
                    storing.wait = at;
                    self.phase = Phase::Storing(storing);
                    return;
                }
                Progress::Send(asks, at) => {
                    let deadline = Some(now.deadline());
                    for (node, op) in asks {
                        out.send(node, op, tag, deadline);
                    }
                    storing.wait = at;
                    self.phase = Phase::Storing(storing);
                    return;
                }
                Progress::Decided(decided) => decided,
            };
            if decided.is_ok() {
                out.news.push(News::Saw(storing.value));
                (self.phase, self.calls) = (Phase::Idle, u8::MAX);
                return;
            }
            if !storing.machine.take_refusal() {
                self.phase = Phase::Idle;
                if storing.is_own {
                    self.look(now, storing.value, out);
                }
                return;
            }
            if now.at < storing.held.until {
                match storing.held.extend(now, out) {
                    None => {
                        self.phase = Phase::Storing(storing);
                        return;
                    }
                    Some(result) => storing.held.extended(now, &result),
                }
                storing.machine.renewed(now.at);
            }
            progress = storing.machine.on_time(now.at);
        }
    }

    /// The renewal is over: the machine goes on, and reads what came in the meantime.
    fn renewed(&mut self, now: &Now<'_>, mut storing: Storing, out: &mut Out) {
        storing.machine.renewed(now.at);
        let unread = std::mem::take(&mut storing.unread);
        let progress = storing.machine.on_time(now.at);
        self.storing(now, storing, progress, out);
        for (node, answer) in unread {
            if let Phase::Storing(mut storing) = std::mem::take(&mut self.phase) {
                let progress = storing.machine.on_reply(now.at, node, &answer);
                self.storing(now, storing, progress, out);
            }
        }
    }

    fn look(&mut self, now: &Now<'_>, value: u8, out: &mut Out) {
        let op = Op::Lookup {
            key: key(),
            retention: RETENTION,
            fingerprint: None,
            born: None,
            accepted: Duration::ZERO,
        };
        let tag = Tag { owner: value, round: LOOK, until: Moment::default() };
        out.send_all(&op, tag, Some(now.deadline()));
        let by = now.tick + 2 * now.spec.node_deadline();
        let mut machine = Look::new(NODES, by);
        let progress = machine.on_time(now.at);
        self.phase = Phase::Looking { machine, value, wait: by };
        self.looked(now, progress, out);
    }

    fn looked(&mut self, now: &Now<'_>, progress: Progress<Found>, out: &mut Out) {
        let Phase::Looking { value, wait, .. } = &mut self.phase else { return };
        let (value, found) = match progress {
            Progress::Wait(at) => {
                *wait = at;
                return;
            }
            Progress::Send(..) => return,
            Progress::Decided(found) => (*value, found),
        };
        self.phase = Phase::Idle;
        match found {
            Found::Stored(record) => out.news.push(News::Saw(value_of(&record))),
            Found::NoQuorum(_) => {}
            _ => self.claim(now, Some(value), out),
        }
    }

    fn on_time(&mut self, now: &Now<'_>, out: &mut Out) {
        for _ in 0..8 {
            if self.wait().is_none_or(|wait| now.at < wait) {
                return;
            }
            match std::mem::take(&mut self.phase) {
                Phase::Idle => {}
                Phase::Claiming(mut claiming) => {
                    let progress = claiming.machine.on_time(now.at);
                    self.claiming(now, claiming, progress, out);
                }
                Phase::Running(mut running) => {
                    let (renewal, mut lease) = running.held.lease();
                    let result = renewal.as_mut().and_then(|r| r.on_time(now, &mut lease, out));
                    if let Some(result) = result {
                        running.held.extended(now, &result);
                    }
                    self.phase = Phase::Running(running);
                }
                Phase::Storing(mut storing) => {
                    let (renewal, mut lease) = storing.held.lease();
                    if let Some(renewal) = renewal {
                        match renewal.on_time(now, &mut lease, out) {
                            Some(result) => {
                                storing.held.extended(now, &result);
                                self.renewed(now, storing, out);
                            }
                            None => self.phase = Phase::Storing(storing),
                        }
                    } else {
                        let progress = storing.machine.on_time(now.at);
                        self.storing(now, storing, progress, out);
                    }
                }
                Phase::Looking { mut machine, value, wait } => {
                    let progress = machine.on_time(now.at);
                    self.phase = Phase::Looking { machine, value, wait };
                    self.looked(now, progress, out);
                }
            }
        }
        panic!("a machine waits for a time that has passed");
    }

    pub(crate) fn hear(&mut self, tick: &Now<'_>, node: usize, delivery: &Delivery) -> Out {
        let now = &Now { at: self.at.max(tick.at), ..*tick };
        let mut out = Out::default();
        let Delivery { tag, answer, history } = delivery;
        match std::mem::take(&mut self.phase) {
            Phase::Claiming(mut claiming) if claiming.owner == tag.owner && tag.round == 0 => {
                claiming.grant.answered(node, answer, (0, tag.until), (now.at, *history));
                let mut progress = claiming.machine.on_reply(now.at, node, answer);
                let twice = now.spec.has(Bug::CountsOneNodeTwice) && answer.is_ok();
                if twice && !matches!(progress, Progress::Decided(_)) {
                    progress = claiming.machine.on_reply(now.at, (node + 1) % NODES, answer);
                }
                self.claiming(now, claiming, progress, &mut out);
            }
            Phase::Running(mut running) if running.held.owner == tag.owner => {
                let round = (tag.round, tag.until);
                running.held.grant.answered(node, answer, round, (now.at, *history));
                let (renewal, mut lease) = running.held.lease();
                let renewal = renewal.as_mut().filter(|renewal| renewal.is_of(*tag));
                let result =
                    renewal.and_then(|r| r.on_reply(now, &mut lease, (node, answer), &mut out));
                if let Some(result) = result {
                    running.held.extended(now, &result);
                }
                self.phase = Phase::Running(running);
            }
            Phase::Storing(mut storing) if storing.held.owner == tag.owner => {
                if tag.round != STORE {
                    let round = (tag.round, tag.until);
                    storing.held.grant.answered(node, answer, round, (now.at, *history));
                }
                let (renewal, mut lease) = storing.held.lease();
                match renewal {
                    None if tag.round == STORE => {
                        let progress = storing.machine.on_reply(now.at, node, answer);
                        self.storing(now, storing, progress, &mut out);
                    }
                    Some(renewal) if renewal.is_of(*tag) => {
                        match renewal.on_reply(now, &mut lease, (node, answer), &mut out) {
                            Some(result) => {
                                storing.held.extended(now, &result);
                                self.renewed(now, storing, &mut out);
                            }
                            None => self.phase = Phase::Storing(storing),
                        }
                    }
                    Some(_) if tag.round == STORE => {
                        storing.unread.push((node, answer.clone()));
                        self.phase = Phase::Storing(storing);
                    }
                    _ => self.phase = Phase::Storing(storing),
                }
            }
            Phase::Looking { mut machine, value, wait }
                if value == tag.owner && tag.round == LOOK =>
            {
                let progress = machine.on_reply(now.at, node, answer);
                self.phase = Phase::Looking { machine, value, wait };
                self.looked(now, progress, &mut out);
            }
            other => self.phase = other,
        }
        out
    }
}
