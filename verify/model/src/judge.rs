//! What must hold after each step of a world.

use std::time::Duration;

use palisade::Moment;
use palisade::internal::model::{Acquire, AcquireSlot, Answer, Denied, Machine, Progress, Record};
use palisade::node::spi::{LockMode, Op};

use crate::client::{Hold, News, owner_token, token};
use crate::held::{claim, key};
use crate::lock::keys;
use crate::spec::{NODES, RETENTION, Role, START, TICK, TTL, moment};
use crate::world::{Broken, State, World, run};

/// What the judge remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ledger {
    /// Largest tokens of writers and readers so far.
    writer: u64,
    reader: u64,
    slots: [u64; 2],
    /// The result that a caller has been told.
    result: Option<u8>,
    /// Handlers that have begun, and not failed without an effect.
    runs: u8,
}

impl Ledger {
    /// No later holder has had a larger token.
    fn allows(&self, hold: Hold, token: u64) -> Result<(), Broken> {
        let latest = match hold {
            Hold::Write => self.writer.max(self.reader),
            Hold::Read => self.writer,
            Hold::Slot(slot) => self.slots[usize::from(slot)],
        };
        let smaller = || format!("it is held with token {token}, and {latest} was given since");
        (token >= latest).then_some(()).ok_or_else(smaller)
    }

    pub(crate) fn write(&mut self, news: News, role: &Role) -> Result<(), Broken> {
        let rises = |token: u64, before: u64| {
            let smaller = || format!("token {token} is not above the earlier {before}");
            (token > before).then_some(()).ok_or_else(smaller)
        };
        match news {
            News::Won(token, Hold::Write) => {
                rises(token, self.writer.max(self.reader))?;
                self.writer = token;
            }
            News::Won(token, Hold::Read) => {
                // Not below an earlier writer's.
                rises(token + 1, self.writer)?;
                self.reader = self.reader.max(token);
            }
            News::Won(token, Hold::Slot(slot)) => {
                let before = &mut self.slots[usize::from(slot)];
                rises(token, *before)?;
                *before = token;
            }
            News::Downgraded(token) => self.reader = self.reader.max(token),
            News::Ran => {
                self.runs += 1;
                if self.runs > 1 && !matches!(role, Role::Key { reruns: true, .. }) {
                    return Err("the handler has run twice".into());
                }
            }
            News::Undone => self.runs -= 1,
            News::Saw(result) => {
                if let Some(before) = self.result.filter(|before| *before != result) {
                    return Err(format!("two results: {before} and then {result}"));
                }
                self.result = Some(result);
            }
            News::Wrong(what) => return Err(what.into()),
        }
        Ok(())
    }
}

impl World<'_> {
    pub(crate) fn check(&mut self, s: &State) -> Result<(), Broken> {
        let tick = moment(START + u64::from(s.tick));
        let clients = &s.clients[..self.spec.roles.len()];
        let holds = clients.iter().filter_map(|id| self.clients.get(*id).believes(tick));
        let holds: Vec<(Hold, u64)> = holds.collect();
        for (i, (one, token)) in holds.iter().enumerate() {
            s.ledger.allows(*one, *token)?;
            for (other, _) in &holds[i + 1..] {
                let beside = match (one, other) {
                    (Hold::Read, Hold::Read) => true,
                    (Hold::Slot(one), Hold::Slot(other)) => one != other,
                    _ => false,
                };
                if !beside {
                    return Err(format!("two hold it: {one:?} beside {other:?}"));
                }
            }
        }
        let is_lock = matches!(self.spec.roles[0], Role::Lock(_));
        let is_quiet = s.faults == 0
            && is_lock
            && s.stray.is_none()
            && clients.iter().all(|id| self.clients.get(*id).is_quiet())
            && s.links.iter().flatten().all(|link| self.links.get(*link).is_empty());
        if is_quiet && !self.is_granted(s, 0) {
            return Err("all was given back, and a new caller is refused".into());
        }
        // The longest quarantine and the longest lease, by a clock that is behind.
        if s.tick == self.spec.end && !self.is_granted(s, 8) {
            return Err("all leases are over, and a new caller is refused".into());
        }
        Ok(())
    }

    /// A new caller is granted (or told the result) `later`, and nothing is left long after.
    fn is_granted(&mut self, s: &State, later: u8) -> bool {
        let key = (s.nodes, [s.tick, s.gained, later]);
        if let Some(granted) = self.granted.get(&key) {
            return *granted;
        }
        let s = State { tick: s.tick + later, ..*s };
        let mut nodes = s.nodes.map(|id| self.nodes.get(id).clone());
        let clocks: [_; NODES] = std::array::from_fn(|n| self.clock_of(&s, n));
        let sent = moment(START + u64::from(s.tick));
        let ask = |n: usize, op: Op| run(&mut nodes[n], clocks[n], op, None).0;
        let mut granted = match &self.spec.roles[0] {
            Role::Lock(plans) => grants(plans[0].mode, sent, ask),
            Role::Key { .. } => knows(sent, ask),
        };
        for (node, (now, micros)) in nodes.iter_mut().zip(clocks) {
            let long = 1_000;
            let clock = (now + long * TICK, micros + u64::from(long) * 1_000_000);
            let is_key = matches!(self.spec.roles[0], Role::Key { .. });
            granted &= run(node, clock, look(is_key), None).0.is_ok() && node.is_empty();
        }
        self.granted.insert(key, granted);
        granted
    }
}

/// The owner of the new caller.
const NEW: u8 = 63;

/// The lock is granted to a new caller.
fn grants(mode: LockMode, sent: Moment, mut ask: impl FnMut(usize, Op) -> Answer) -> bool {
    let (owner, keys) = (owner_token(NEW), keys());
    let proposal = sent.as_nanos() / 1_000;
    let raise = Op::Raise { keys: keys.clone(), owner, token: token(0), slot: None };
    let acquire = Op::Acquire { mode, keys, owner, ttl: TTL, proposal, if_held: None };
    let until = sent + TTL;
    let machine = Acquire::new(NODES, sent, until, TICK, raise);
    if mode.slots().is_some() {
        let machine = AcquireSlot::new(machine, acquire.clone());
        return decide(machine, sent, &acquire, &mut ask).is_some_and(|end| end.is_ok());
    }
    decide(machine, sent, &acquire, &mut ask).is_some_and(|end| end.is_ok())
}

/// The key is claimed by a new caller, or has a result.
fn knows(sent: Moment, mut ask: impl FnMut(usize, Op) -> Answer) -> bool {
    let proposal = sent.as_nanos() / 1_000;
    let raise = Op::RaiseClaim { key: key(), owner: owner_token(NEW), token: token(0) };
    let machine = Record::new(NODES, sent, sent + TTL, TICK, raise);
    let end = decide(machine, sent, &claim(NEW, proposal, false), &mut ask);
    end.is_some_and(|end| !matches!(end, Err(Denied::Refused(_))))
}

/// All nodes answer at once.
fn decide<M: Machine>(
    mut machine: M,
    sent: Moment,
    op: &Op,
    ask: &mut impl FnMut(usize, Op) -> Answer,
) -> Option<M::Decision> {
    let mut asks: Vec<_> = (0..NODES).map(|n| (n, op.clone())).collect();
    while let Some((n, op)) = asks.pop() {
        match machine.on_reply(sent, n, &ask(n, op)) {
            Progress::Wait(_) => {}
            Progress::Send(more, _) => asks.extend(more),
            Progress::Decided(end) => return Some(end),
        }
    }
    None
}

pub(crate) fn look(is_key: bool) -> Op {
    if is_key {
        Op::Lookup {
            key: key(),
            retention: RETENTION,
            fingerprint: None,
            born: None,
            accepted: Duration::ZERO,
        }
    } else {
        Op::Inspect { keys: keys(), wait: false }
    }
}
