//! A client of a lock: what `client/acquire.rs`, `client/lease.rs` and `client/release.rs` do
//! around the machines.

use palisade::internal::model::{
    Acquire, AcquireSlot, Answer, Extension, Grant, Loss, Machine, Progress, Release, Taken,
    valid_until,
};
use palisade::node::spi::{LockKeys, LockMode, Op, Reply};
use palisade::{Durability, FencingToken, Moment};

use crate::bug::Bug;
use crate::client::{
    Act, Delivery, Hold, Lease, News, Out, RELEASE, Renewal, Tag, owner_token, token,
};
use crate::spec::{GRACE, NODES, Now, Plan, Role, TTL};

#[derive(Clone, Debug, Default)]
pub(crate) struct LockClient {
    attempts: u8,
    /// Its clock, if that is ahead of the tick.
    at: Moment,
    seen: Option<u64>,
    phase: Phase,
}

#[derive(Clone, Debug, Default)]
#[expect(clippy::large_enum_variant, reason = "equal ones are kept once")]
enum Phase {
    #[default]
    Idle,
    Asking(Asking),
    Holding(Holding),
    Releasing {
        machine: Release,
        owner: u8,
        valid: Moment,
        wait: Moment,
    },
}

#[derive(Clone, Debug)]
struct Asking {
    machine: Ask,
    grant: Grant,
    owner: u8,
    proposal: u64,
    until: Moment,
    wait: Moment,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "equal ones are kept once")]
enum Ask {
    Lock(Acquire),
    Slot(AcquireSlot),
}

#[derive(Clone, Debug)]
struct Holding {
    grant: Grant,
    owner: u8,
    token: FencingToken,
    until: Moment,
    extends: u8,
    downgrades: bool,
    renewal: Option<Renewal>,
}

type Won = Progress<Result<(FencingToken, Option<u16>), Loss>>;

impl Ask {
    fn of(progress: Progress<Result<FencingToken, Loss>>) -> Won {
        match progress {
            Progress::Wait(at) => Progress::Wait(at),
            Progress::Send(asks, at) => Progress::Send(asks, at),
            Progress::Decided(result) => Progress::Decided(result.map(|token| (token, None))),
        }
    }

    fn of_slot(progress: Progress<Result<(FencingToken, u16), Loss>>) -> Won {
        match progress {
            Progress::Wait(at) => Progress::Wait(at),
            Progress::Send(asks, at) => Progress::Send(asks, at),
            Progress::Decided(result) => {
                Progress::Decided(result.map(|(token, slot)| (token, Some(slot))))
            }
        }
    }

    fn on_time(&mut self, now: Moment) -> Won {
        match self {
            Self::Lock(machine) => Self::of(machine.on_time(now)),
            Self::Slot(machine) => Self::of_slot(machine.on_time(now)),
        }
    }

    fn on_reply(&mut self, now: Moment, node: usize, answer: &Answer) -> Won {
        match self {
            Self::Lock(machine) => Self::of(machine.on_reply(now, node, answer)),
            Self::Slot(machine) => Self::of_slot(machine.on_reply(now, node, answer)),
        }
    }

    fn largest(&self) -> Option<u64> {
        match self {
            Self::Lock(machine) => machine.largest(),
            Self::Slot(machine) => machine.largest(),
        }
    }
}

pub(crate) fn keys() -> LockKeys {
    LockKeys::new("a")
}

fn release(mode: LockMode, owner: u8) -> Op {
    Op::Release { mode, keys: keys(), owner: owner_token(owner), meta: false }
}

impl Holding {
    fn lease(&mut self) -> (&mut Option<Renewal>, Lease<'_>) {
        let extension = Op::Extend {
            mode: self.grant.mode,
            keys: keys(),
            owner: owner_token(self.owner),
            ttl: TTL,
            token: self.token,
            meta: None,
            reassert: None,
        };
        let Self { renewal, owner, grant, until, .. } = self;
        (renewal, Lease { owner: *owner, grant, until: *until, extension })
    }

    fn extend(&mut self, now: &Now<'_>, out: &mut Out) -> Option<Extension> {
        let (renewal, mut lease) = self.lease();
        let (begun, result) = Renewal::begin(now, &mut lease, out);
        *renewal = Some(begun);
        result
    }
}

impl LockClient {
    fn plan<'a>(&self, now: &Now<'a>) -> Option<&'a Plan> {
        let Role::Lock(plans) = &now.spec.roles[now.me] else { return None };
        plans.get(usize::from(self.attempts))
    }

    fn wait(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Idle => None,
            Phase::Asking(asking) => Some(asking.wait),
            Phase::Holding(holding) => holding.renewal.as_ref().map(|renewal| renewal.wait),
            Phase::Releasing { wait, .. } => Some(*wait),
        }
    }

    pub(crate) fn believes(&self, tick: Moment) -> Option<(Hold, u64)> {
        let Phase::Holding(holding) = &self.phase else { return None };
        let hold = match holding.grant.mode {
            LockMode::Exclusive => Hold::Write,
            LockMode::Shared => Hold::Read,
            LockMode::Slot(slots) => Hold::Slot(slots.slot().unwrap_or_default()),
        };
        (self.at.max(tick) < holding.until).then_some((hold, holding.token.get()))
    }

    pub(crate) fn is_asking(&self) -> bool {
        matches!(self.phase, Phase::Asking(_))
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.attempts == 0
    }

    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Releasing { .. })
    }

    pub(crate) fn acts(&self, now: &Now<'_>) -> Vec<Act> {
        let at = self.at.max(now.at);
        let mut acts = Vec::new();
        match &self.phase {
            Phase::Idle | Phase::Releasing { .. } => {
                acts.extend(self.plan(now).map(|_| Act::Begin));
            }
            Phase::Holding(holding) if at < holding.until => {
                acts.push(Act::Release);
                if holding.extends > 0 && holding.renewal.is_none() {
                    acts.push(Act::Extend);
                }
                if holding.downgrades && holding.renewal.is_none() {
                    acts.push(Act::Downgrade);
                }
            }
            Phase::Asking(_) | Phase::Holding(_) => {}
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
            Act::Begin => self.begin(now, &mut out),
            Act::Extend | Act::Downgrade => self.extend(now, act == Act::Downgrade, &mut out),
            Act::Release => self.release(now, &mut out),
            Act::Time | Act::Timer => self.on_time(now, &mut out),
            Act::Finish | Act::Fail => {}
        }
        out
    }

    fn begin(&mut self, now: &Now<'_>, out: &mut Out) {
        let Some(plan) = self.plan(now) else { return };
        self.attempts += 1;
        let owner = (now.me * 4) as u8 + self.attempts;
        let mode = match plan.mode {
            LockMode::Slot(slots) => LockMode::Slot(slots.in_order_of(&owner_token(owner))),
            mode => mode,
        };
        let proposal = now.proposal(self.seen);
        let until = valid_until(now.tick, TTL, now.spec.drift());
        let grant = Grant::new(NODES, mode, Durability::Primary);
        let raise =
            Op::Raise { keys: keys(), owner: owner_token(owner), token: token(0), slot: None };
        let machine = Acquire::new(NODES, now.tick, until, now.spec.node_deadline() + GRACE, raise);
        let acquire = Op::Acquire {
            mode,
            keys: keys(),
            owner: owner_token(owner),
            ttl: TTL,
            proposal,
            if_held: None,
        };
        let tag = Tag { owner, round: 0, until };
        out.send_all(&acquire, tag, Some(now.deadline().min(until)));
        let mut machine = match mode {
            LockMode::Slot(_) => Ask::Slot(AcquireSlot::new(machine, acquire)),
            _ => Ask::Lock(machine),
        };
        let progress = machine.on_time(now.at);
        let asking = Asking { machine, grant, owner, proposal, until, wait: now.at };
        self.ask(now, asking, progress, out);
    }

    fn ask(&mut self, now: &Now<'_>, mut asking: Asking, progress: Won, out: &mut Out) {
        let tag = Tag { owner: asking.owner, round: 0, until: asking.until };
        let deadline = Some(now.deadline().min(asking.until));
        let decided = match progress {
            Progress::Wait(at) => {
                asking.wait = at;
                self.phase = Phase::Asking(asking);
                return;
            }
            Progress::Send(asks, at) => {
                for (node, op) in asks {
                    out.send(node, op, tag, deadline);
                }
                asking.wait = at;
                self.phase = Phase::Asking(asking);
                return;
            }
            Progress::Decided(decided) => decided,
        };
        let Asking { machine, mut grant, owner, proposal, mut until, .. } = asking;
        now.saw(&mut self.seen, machine.largest(), proposal);
        let Ok((token, slot)) = decided else {
            out.undo(now, &release(grant.mode, owner), &grant, owner);
            self.phase = Phase::Idle;
            return;
        };
        if let (Ask::Slot(machine), Some(slot)) = (&machine, slot) {
            let mode = grant.won_with(slot);
            let owner = owner_token(owner);
            let op = Op::Extend {
                mode,
                keys: keys(),
                owner,
                ttl: TTL,
                token,
                meta: None,
                reassert: None,
            };
            for node in machine.strays() {
                grant.extended(node);
                out.send(node, op.clone(), tag, deadline);
            }
        }
        if now.spec.has(Bug::ValidFromAnswer) {
            until = valid_until(now.tick, TTL, now.spec.drift());
        }
        let hold = match (grant.mode, slot) {
            (LockMode::Shared, _) => Hold::Read,
            (_, Some(slot)) => Hold::Slot(slot),
            (_, None) => Hold::Write,
        };
        out.news.push(News::Won(token.get(), hold));
        let Role::Lock(plans) = &now.spec.roles[now.me] else { return };
        let Plan { extends, downgrades, .. } = plans[usize::from(self.attempts) - 1];
        let holding = Holding { grant, owner, token, until, extends, downgrades, renewal: None };
        self.phase = Phase::Holding(holding);
    }

    fn extend(&mut self, now: &Now<'_>, downgrade: bool, out: &mut Out) {
        let Phase::Holding(holding) = &mut self.phase else { return };
        holding.extends = holding.extends.saturating_sub(1);
        if downgrade {
            holding.downgrades = false;
            holding.grant.mode = LockMode::Shared;
            out.news.push(News::Downgraded(holding.token.get()));
        }
        let result = holding.extend(now, out);
        self.extended(now, result, out);
    }

    fn extended(&mut self, now: &Now<'_>, result: Option<Extension>, out: &mut Out) {
        let Phase::Holding(holding) = &mut self.phase else { return };
        let Some(result) = result else { return };
        holding.renewal = None;
        let revives = now.spec.has(Bug::RevivesLapsedLease);
        match result {
            Extension::Until(until) if revives || now.at < holding.until => {
                holding.until = holding.until.max(until);
            }
            Extension::Unknown(_) if now.at < holding.until => {}
            _ => self.release(now, out),
        }
    }

    fn release(&mut self, now: &Now<'_>, out: &mut Out) {
        let Phase::Holding(holding) = &self.phase else { return };
        let (owner, valid) = (holding.owner, holding.until);
        let by = now.tick + 2 * now.spec.node_deadline();
        let mut machine = Release::new(NODES, by);
        for node in (0..NODES).filter(|node| !holding.grant.may_hold(*node)) {
            machine.never_granted(node);
        }
        out.give_back(&release(holding.grant.mode, owner), &holding.grant, owner);
        let progress = machine.on_time(now.at);
        if !now.spec.reads_releases {
            self.phase = Phase::Idle;
            return;
        }
        self.phase = Phase::Releasing { machine, owner, valid, wait: by };
        self.released(now, progress, out);
    }

    fn released(&mut self, now: &Now<'_>, progress: Progress<Taken>, out: &mut Out) {
        let Phase::Releasing { valid, wait, .. } = &mut self.phase else { return };
        let found = match progress {
            Progress::Wait(at) => {
                *wait = at;
                return;
            }
            Progress::Send(..) => return,
            Progress::Decided(found) => found,
        };
        let is_told_lost = matches!(found, Taken::Gone | Taken::Other);
        if is_told_lost && now.at < *valid && !now.spec.kinds.loss {
            out.news.push(News::Wrong("a valid lease was released, and is said to be lost"));
        }
        self.phase = Phase::Idle;
    }

    fn on_time(&mut self, now: &Now<'_>, out: &mut Out) {
        for _ in 0..8 {
            if let Phase::Holding(holding) = &mut self.phase {
                let waits = holding.renewal.is_some() && now.spec.has(Bug::RevivesLapsedLease);
                if now.at >= holding.until && !waits {
                    return self.release(now, out);
                }
            }
            if self.wait().is_none_or(|wait| now.at < wait) {
                return;
            }
            match std::mem::take(&mut self.phase) {
                Phase::Idle => {}
                Phase::Asking(mut asking) => {
                    let progress = asking.machine.on_time(now.at);
                    self.ask(now, asking, progress, out);
                }
                Phase::Holding(mut holding) => {
                    let (renewal, mut lease) = holding.lease();
                    let result = renewal.as_mut().and_then(|r| r.on_time(now, &mut lease, out));
                    self.phase = Phase::Holding(holding);
                    self.extended(now, result, out);
                }
                Phase::Releasing { mut machine, owner, valid, wait } => {
                    let progress = machine.on_time(now.at);
                    self.phase = Phase::Releasing { machine, owner, valid, wait };
                    self.released(now, progress, out);
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
            Phase::Asking(mut asking) if asking.owner == tag.owner && tag.round == 0 => {
                asking.grant.answered(node, answer, (0, tag.until), (now.at, *history));
                let mut answer = answer.clone();
                if let (true, Ok(Reply::Permit { slot, .. })) =
                    (now.spec.has(Bug::PermitsCounted), &mut answer)
                {
                    *slot = 0;
                }
                let mut progress = asking.machine.on_reply(now.at, node, &answer);
                let twice = now.spec.has(Bug::CountsOneNodeTwice) && answer.is_ok();
                if twice && !matches!(progress, Progress::Decided(_)) {
                    progress = asking.machine.on_reply(now.at, (node + 1) % NODES, &answer);
                }
                self.ask(now, asking, progress, &mut out);
            }
            Phase::Holding(mut holding) if holding.owner == tag.owner => {
                holding.grant.answered(node, answer, (tag.round, tag.until), (now.at, *history));
                let (renewal, mut lease) = holding.lease();
                let renewal = renewal.as_mut().filter(|renewal| renewal.is_of(*tag));
                let result =
                    renewal.and_then(|r| r.on_reply(now, &mut lease, (node, answer), &mut out));
                self.phase = Phase::Holding(holding);
                self.extended(now, result, &mut out);
            }
            Phase::Releasing { mut machine, owner, valid, wait }
                if owner == tag.owner && tag.round == RELEASE =>
            {
                let progress = machine.on_reply(now.at, node, answer);
                self.phase = Phase::Releasing { machine, owner, valid, wait };
                self.released(now, progress, &mut out);
            }
            other => self.phase = other,
        }
        out
    }
}
