//! The steps of a world: requests reach nodes, answers reach clients, time passes, faults happen.

use std::collections::HashMap;
use std::rc::Rc;

use palisade::Moment;
use palisade::internal::model::{Answer, NodeValue, Witness};
use palisade::node::spi::{Batch, NotAfter, Op, QuarantineId, Remembered};

use crate::bug::Bug;
use crate::client::{Act, Client, Delivery, News, Out, Request};
use crate::intern::{Id, Interner};
use crate::judge::Ledger;
use crate::spec::{CLIENTS, NODES, Now, START, Spec, TERMS, moment};

/// A request on its way, with its deadline by the node's clock.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) request: Request,
    not_after: Option<NotAfter>,
}

/// All numbers but those of `Ledger` and the tick are of the [`World`]'s values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) tick: u8,
    pub(crate) faults: u8,
    /// Bit set of the nodes whose clocks have gained a tick.
    pub(crate) gained: u8,
    /// Bit set of the nodes to which something has happened.
    pub(crate) touched: u8,
    pub(crate) nodes: [Id; NODES],
    pub(crate) clients: [Id; CLIENTS],
    /// Lists of messages, in their order, by client and node.
    pub(crate) links: [[Id; NODES]; CLIENTS],
    /// A message that was overtaken, with its node.
    pub(crate) stray: Option<(u8, Id)>,
    /// An answer that is late, with its client and node.
    pub(crate) late: Option<(u8, u8, Id)>,
    pub(crate) ledger: Ledger,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Tick,
    Act(usize, Act),
    /// A request arrives, and its answer at once.
    Arrives(usize, usize),
    AnswerStays(usize, usize),
    IsOvertaken(usize, usize),
    StrayArrives,
    AnswerArrives,
    Dies(usize),
    LosesData(usize),
    GainsTick(usize),
}

type Step = Rc<(Id, Vec<(usize, Id)>, Vec<News>)>;

#[derive(Debug)]
pub(crate) struct World<'a> {
    pub(crate) spec: &'a Spec,
    /// Of each client, if it and the one before it may do the same.
    alike: [bool; CLIENTS],
    pub(crate) nodes: Interner<NodeValue>,
    pub(crate) clients: Interner<Client>,
    pub(crate) messages: Interner<Message>,
    pub(crate) requests: Interner<Request>,
    pub(crate) links: Interner<Vec<Id>>,
    pub(crate) deliveries: Interner<Delivery>,
    pub(crate) executed: HashMap<(Id, Id, u8), (Id, Id)>,
    pub(crate) told: HashMap<(Id, u8, u8, Id, u8), Step>,
    pub(crate) did: HashMap<(Id, u8, Act, u8), Step>,
    pub(crate) sent: HashMap<(Id, Id, [u8; 2]), Id>,
    pub(crate) granted: HashMap<([Id; NODES], [u8; 3]), bool>,
}

pub(crate) type Broken = String;

impl<'a> World<'a> {
    pub(crate) fn new(spec: &'a Spec) -> Self {
        Self {
            spec,
            alike: std::array::from_fn(|c| c < spec.roles.len() && spec.is_like_the_last(c)),
            nodes: Interner::default(),
            clients: Interner::default(),
            messages: Interner::default(),
            requests: Interner::default(),
            links: Interner::default(),
            deliveries: Interner::default(),
            executed: HashMap::new(),
            told: HashMap::new(),
            did: HashMap::new(),
            sent: HashMap::new(),
            granted: HashMap::new(),
        }
    }

    fn fresh(&self, node: usize, tick: i64) -> NodeValue {
        let mut value = NodeValue::new(1);
        let (now, micros) = self.clock(node, tick, false);
        // So that the node knows the length of a quarantine.
        value.execute(now, micros, &batch(Vec::new(), None));
        value
    }

    pub(crate) fn first(&mut self) -> State {
        let fresh: [_; NODES] = std::array::from_fn(|node| self.fresh(node, 0));
        let nodes = fresh.map(|node| self.put_node(node));
        let dead = self.clients.put(&Client::Dead);
        let mut clients = [dead; CLIENTS];
        for (id, role) in clients.iter_mut().zip(&self.spec.roles) {
            *id = self.clients.put(&Client::new(role));
        }
        let links = [[self.links.put(&Vec::new()); NODES]; CLIENTS];
        let ledger = Ledger::default();
        State {
            tick: 0,
            faults: 0,
            gained: 0,
            touched: 0,
            nodes,
            clients,
            links,
            stray: None,
            late: None,
            ledger,
        }
    }

    fn put_node(&mut self, node: NodeValue) -> Id {
        let text = node.to_string();
        self.nodes.put_as(node, format_args!("{text}"))
    }

    /// The node's clock for leases, and its wall clock in µs.
    fn clock(&self, node: usize, tick: i64, gained: bool) -> (Moment, u64) {
        let ahead = self.spec.nodes_ahead[node] + i64::from(gained);
        let seconds = START.saturating_add_signed(tick + ahead);
        (moment(seconds), seconds * 1_000_000)
    }

    pub(crate) fn clock_of(&self, s: &State, node: usize) -> (Moment, u64) {
        self.clock(node, s.tick.into(), s.gained & 1 << node != 0)
    }

    /// Identifies the reading of a node's clock.
    pub(crate) fn reading(&self, s: &State, node: usize) -> u8 {
        (self.clock_of(s, node).1 / 1_000_000 + 8 - START) as u8
    }

    fn now(&self, tick: u8, me: usize) -> Now<'a> {
        let tick = moment(START + u64::from(tick));
        Now { spec: self.spec, me, tick, at: tick }
    }

    pub(crate) fn events(&self, s: &State) -> Vec<Event> {
        let mut events = Vec::new();
        let kinds = self.spec.kinds;
        let faulty = s.faults < self.spec.faults;
        // Of nodes that are alike, the one with the lowest number is the first to which something
        // happens.
        let first = s.touched.trailing_ones() as usize;
        let may =
            |n: &usize| !self.spec.nodes_are_alike() || s.touched & 1 << n != 0 || *n == first;
        let client = |c: usize| self.clients.get(s.clients[c]);
        let clients = 0..self.spec.roles.len();
        let asking = clients.clone().filter(|c| client(*c).is_asking()).count();
        for c in clients.clone() {
            // As with nodes.
            let waits = asking >= self.spec.at_once || self.alike[c] && client(c - 1).is_fresh();
            let acts = client(c).acts(&self.now(s.tick, c)).into_iter();
            let acts = acts.filter(|act| !waits || *act != Act::Begin);
            events.extend(acts.map(|act| Event::Act(c, act)));
            let is_full = |n: &usize| !self.links.get(s.links[c][*n]).is_empty();
            for n in (0..NODES).filter(may).filter(is_full) {
                events.push(Event::Arrives(c, n));
                let is_dead = matches!(client(c), Client::Dead);
                if faulty && kinds.late_reply && s.late.is_none() && !is_dead {
                    events.push(Event::AnswerStays(c, n));
                }
                if faulty && kinds.stray && s.stray.is_none() {
                    events.push(Event::IsOvertaken(c, n));
                }
            }
            if faulty && kinds.crash && !client(c).is_quiet() {
                events.push(Event::Dies(c));
            }
        }
        for n in (0..NODES).filter(may).filter(|_| faulty) {
            if kinds.loss {
                events.push(Event::LosesData(n));
            }
            if kinds.gain && s.gained == 0 {
                events.push(Event::GainsTick(n));
            }
        }
        events.extend(s.stray.map(|_| Event::StrayArrives));
        events.extend(s.late.map(|_| Event::AnswerArrives));
        // Time begins with the first event. Where the network is not slow, releases have arrived.
        let begun = s.faults > 0 || !clients.clone().all(|c| client(c).is_fresh());
        let waits = !self.spec.is_slow && s.links.iter().flatten().any(|link| self.has_undo(*link));
        if s.tick < self.spec.end && begun && !waits {
            events.push(Event::Tick);
        }
        events
    }

    fn has_undo(&self, link: Id) -> bool {
        let mut messages = self.links.get(link).iter();
        messages.any(|message| self.messages.get(*message).request.deadline.is_none())
    }

    pub(crate) fn apply(&mut self, before: &State, event: Event) -> (State, Result<(), Broken>) {
        let mut s = *before;
        let mut news = Ok(());
        match event {
            Event::Tick => {
                s.tick += 1;
                if !self.spec.is_slow {
                    self.drop_late(&mut s);
                }
                for c in 0..self.spec.roles.len() {
                    let act = self.act(&mut s, c, Act::Time);
                    news = news.and(act);
                }
            }
            Event::Act(c, act) => news = self.act(&mut s, c, act),
            Event::Arrives(c, n) => {
                let message = self.take(&mut s, c, n);
                let delivery = self.execute(&mut s, n, message);
                news = self.tell(&mut s, c, n, delivery);
            }
            Event::AnswerStays(c, n) => {
                s.faults += 1;
                let message = self.take(&mut s, c, n);
                let delivery = self.execute(&mut s, n, message);
                s.late = Some((c as u8, n as u8, delivery));
            }
            Event::IsOvertaken(c, n) => {
                s.faults += 1;
                s.stray = Some((n as u8, self.take(&mut s, c, n)));
            }
            Event::StrayArrives => {
                if let Some((n, message)) = s.stray.take() {
                    self.execute(&mut s, n.into(), message);
                }
            }
            Event::AnswerArrives => {
                if let Some((c, n, delivery)) = s.late.take() {
                    news = self.tell(&mut s, c.into(), n.into(), delivery);
                }
            }
            Event::Dies(c) => {
                s.faults += 1;
                s.clients[c] = self.clients.put(&Client::Dead);
                s.late = s.late.filter(|late| usize::from(late.0) != c);
            }
            Event::LosesData(n) => {
                s.faults += 1;
                let mut node = self.nodes.get(s.nodes[n]).clone();
                if self.spec.has(Bug::NoQuarantine) {
                    node = self.fresh(n, s.tick.into());
                } else {
                    node.lose_data();
                    // Some client asks at once. Else the quarantine begins later.
                    let (now, micros) = self.clock_of(&s, n);
                    node.execute(now, micros, &batch(Vec::new(), None));
                }
                s.nodes[n] = self.put_node(node);
            }
            Event::GainsTick(n) => {
                s.faults += 1;
                s.gained |= 1 << n;
            }
        }
        if let Event::Arrives(_, n)
        | Event::AnswerStays(_, n)
        | Event::IsOvertaken(_, n)
        | Event::LosesData(n)
        | Event::GainsTick(n) = event
        {
            s.touched |= 1 << n;
        }
        let holds = news.and_then(|()| self.check(&s));
        (s, holds)
    }

    /// Takes the requests away that are past their deadline: no answer comes to them.
    fn drop_late(&mut self, s: &mut State) {
        for c in 0..self.spec.roles.len() {
            for n in 0..NODES {
                let micros = self.clock_of(s, n).1;
                let is_late = |message: &Id| {
                    let not_after = self.messages.get(*message).not_after.as_ref();
                    not_after.is_some_and(|moment| moment.micros < micros)
                };
                let mut link = self.links.get(s.links[c][n]).clone();
                if link.iter().any(is_late) {
                    link.retain(|message| !is_late(message));
                    s.links[c][n] = self.links.put(&link);
                }
            }
        }
    }

    fn take(&mut self, s: &mut State, c: usize, n: usize) -> Id {
        let mut link = self.links.get(s.links[c][n]).clone();
        let message = link.remove(0);
        s.links[c][n] = self.links.put(&link);
        message
    }

    fn act(&mut self, s: &mut State, c: usize, act: Act) -> Result<(), Broken> {
        let key = (s.clients[c], c as u8, act, s.tick);
        let step = if let Some(step) = self.did.get(&key) {
            Rc::clone(step)
        } else {
            let mut client = self.clients.get(s.clients[c]).clone();
            let out = client.act(&self.now(s.tick, c), act);
            let step = self.step(&client, out);
            self.did.insert(key, Rc::clone(&step));
            step
        };
        self.follow(s, c, &step)
    }

    fn tell(&mut self, s: &mut State, c: usize, n: usize, delivery: Id) -> Result<(), Broken> {
        let key = (s.clients[c], c as u8, n as u8, delivery, s.tick);
        let step = if let Some(step) = self.told.get(&key) {
            Rc::clone(step)
        } else {
            let now = self.now(s.tick, c);
            let mut client = self.clients.get(s.clients[c]).clone();
            let mut delivery = self.deliveries.get(delivery).clone();
            let witness =
                Witness { facts: None, objection: None, terms: &TERMS, wall_micros: now.wall() };
            delivery.answer = witness.judge(delivery.answer, true);
            let out = client.hear(&now, n, &delivery);
            let step = self.step(&client, out);
            self.told.insert(key, Rc::clone(&step));
            step
        };
        self.follow(s, c, &step)
    }

    fn step(&mut self, client: &Client, out: Out) -> Step {
        let client = self.clients.put(client);
        let requests = out.requests.iter().map(|(n, r)| (*n, self.requests.put(r))).collect();
        Rc::new((client, requests, out.news))
    }

    fn follow(&mut self, s: &mut State, c: usize, step: &Step) -> Result<(), Broken> {
        let (client, requests, news) = &**step;
        s.clients[c] = *client;
        for (n, request) in requests {
            let key = (*request, s.nodes[*n], [s.tick, self.reading(s, *n)]);
            let message = if let Some(message) = self.sent.get(&key) {
                *message
            } else {
                let message = self.message(s, *n, *request);
                let id = self.messages.put(&message);
                self.sent.insert(key, id);
                id
            };
            let mut link = self.links.get(s.links[c][*n]).clone();
            link.push(message);
            s.links[c][*n] = self.links.put(&link);
        }
        news.iter().try_for_each(|news| s.ledger.write(*news, &self.spec.roles[c]))
    }

    /// The deadline is by the node's clock, of which the client knows the reading (overview 3).
    fn message(&self, s: &State, n: usize, request: Id) -> Message {
        let request = self.requests.get(request).clone();
        let micros = self.clock_of(s, n).1;
        let not_after = request.deadline.map(|deadline| {
            let span = deadline.since(self.now(s.tick, 0).at).as_micros() as u64;
            let span = span * u64::from(1_000_000 - self.spec.drift) / 1_000_000;
            let server = self.nodes.get(s.nodes[n]).identity();
            NotAfter { server, micros: micros + span }
        });
        Message { request, not_after }
    }

    fn execute(&mut self, s: &mut State, n: usize, message: Id) -> Id {
        let key = (s.nodes[n], message, self.reading(s, n));
        if let Some((node, delivery)) = self.executed.get(&key) {
            s.nodes[n] = *node;
            return *delivery;
        }
        let clock = self.clock_of(s, n);
        let mut node = self.nodes.get(s.nodes[n]).clone();
        let Message { request, not_after } = self.messages.get(message).clone();
        let mut op = request.op;
        let lie = self.spec.bug.and_then(|bug| bug.before(&node, &mut op, clock, TERMS));
        let (mut answer, history) = match lie {
            Some(answer) => (answer, None),
            None => run(&mut node, clock, op, not_after),
        };
        if let Some(bug) = self.spec.bug {
            bug.after(&mut answer);
        }
        let delivery = self.deliveries.put(&Delivery { tag: request.tag, answer, history });
        let node = self.put_node(node);
        self.executed.insert(key, (node, delivery));
        s.nodes[n] = node;
        delivery
    }
}

fn batch(ops: Vec<Op>, not_after: Option<NotAfter>) -> Batch {
    Batch { terms: TERMS, not_after, remembers: Remembered::default(), ops }
}

pub(crate) fn run(
    node: &mut NodeValue,
    (now, micros): (Moment, u64),
    op: Op,
    not_after: Option<NotAfter>,
) -> (Answer, Option<QuarantineId>) {
    let mut replies = node.execute(now, micros, &batch(vec![op], not_after));
    let history =
        replies.facts.map(|facts| QuarantineId { history: facts.history_id, since: facts.since });
    (replies.items.remove(0), history)
}
