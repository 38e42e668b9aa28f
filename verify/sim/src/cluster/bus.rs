//! What the servers of a simulated cluster tell each other: who owns which slot, in which epoch,
//! and who takes the place of a silent master. The rules are those of Redis, as far as they decide
//! who calls itself the owner of a slot.

use std::fmt::Write as _;
use std::sync::Arc;

use super::{Cluster, OURS, State};
use crate::plan::{ClusterPlan, Ms, Promotion, ms};
use crate::trace::Event;

/// Interval between the messages from one server to another, and between copies to a replica.
const PULSE: Ms = 10;

/// How one server sees the cluster.
#[derive(Clone, Debug)]
pub(super) struct View {
    node_timeout: Ms,
    /// The largest epoch that it has heard of.
    pub(super) current: u64,
    /// Configuration epoch of each server.
    pub(super) epochs: Vec<u64>,
    pub(super) owners: Vec<Option<usize>>,
    /// Slots that their owner does not claim any more.
    unclaimed: Vec<bool>,
    /// The master of each server, if it is a replica.
    pub(super) follows: Vec<Option<usize>>,
    heard: Vec<Ms>,
    /// Since when it takes a server for failed, because a majority does.
    failed: Vec<Option<Ms>>,
    /// Epoch of its last vote, and when it last voted for a replica of each master.
    voted: u64,
    votes: Vec<Option<Ms>>,
    /// When it stands for election again.
    stands: Ms,
}

/// What a master says of itself, or another server of it.
struct Claim {
    of: usize,
    current: u64,
    epoch: u64,
    slots: Vec<usize>,
}

impl View {
    pub(super) fn new(plan: &ClusterPlan) -> Self {
        let (servers, masters) = (plan.clocks.len(), plan.masters);
        Self {
            node_timeout: plan.node_timeout,
            current: servers as u64,
            epochs: (1..=servers as u64).collect(),
            owners: (0..usize::from(plan.slots)).map(|slot| Some(slot % masters)).collect(),
            unclaimed: vec![false; usize::from(plan.slots)],
            follows: (0..servers).map(|n| (n >= masters).then_some(n % masters)).collect(),
            heard: vec![0; servers],
            failed: vec![None; servers],
            voted: 0,
            votes: vec![None; servers],
            stands: 0,
        }
    }

    pub(super) fn owns(&self, of: usize, slot: u16) -> bool {
        self.follows[of].is_none() && self.owners[usize::from(slot)] == Some(of)
    }

    pub(super) fn slots(&self, of: usize) -> Vec<usize> {
        (0..self.owners.len()).filter(|slot| self.owners[*slot] == Some(of)).collect()
    }

    fn voters(&self) -> impl Iterator<Item = usize> {
        (0..self.epochs.len())
            .filter(|at| self.follows[*at].is_none() && !self.slots(*at).is_empty())
    }

    fn needed(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    fn is_silent(&self, whom: usize, now: Ms) -> bool {
        now > self.heard[whom] + self.node_timeout
    }

    /// Takes a new epoch, the highest of all.
    pub(super) fn bump(&mut self, own: usize) {
        let highest = self.epochs.iter().max().copied().unwrap_or(0);
        if self.epochs[own] != highest || self.epochs[own] == 0 {
            self.current = self.current.max(highest) + 1;
            self.epochs[own] = self.current;
        }
    }

    fn claim(&self, of: usize) -> Claim {
        Claim { of, current: self.current, epoch: self.epochs[of], slots: self.slots(of) }
    }

    /// The answer to `CLUSTER NODES` of the server `own`.
    pub(super) fn text(&self, own: usize, moving: &[bool]) -> String {
        let mut text = String::new();
        for at in 0..self.epochs.len() {
            let role = if self.follows[at].is_none() { "master" } else { "slave" };
            let myself = if at == own { "myself," } else { "" };
            let fail = if self.failed[at].is_some() { ",fail" } else { "" };
            let master = self.follows[at].map_or_else(|| "-".to_owned(), id);
            let epoch = self.epochs[self.follows[at].unwrap_or(at)];
            let (id, port) = (id(at), OURS + at as u16);
            let _ =
                write!(text, "{id} h:{port}@1 {myself}{role}{fail} {master} 0 0 {epoch} connected");
            if self.follows[at].is_none() {
                for slot in self.slots(at) {
                    let _ = write!(text, " {slot}");
                }
            }
            for slot in moving.iter().enumerate().filter(|m| *m.1 && at == own).map(|m| m.0) {
                let way = if self.owners[slot] == Some(own) { "->-" } else { "-<-" };
                let _ = write!(text, " [{slot}{way}{id}]");
            }
            text.push('\n');
        }
        text
    }
}

fn id(server: usize) -> String {
    format!("{:x<40}", format!("s{server}"))
}

impl Cluster {
    pub(crate) async fn gossip(self: Arc<Self>) {
        loop {
            tokio::time::sleep(ms(PULSE)).await;
            let mut state = self.state();
            let (count, now) = (state.servers.len(), self.now());
            for from in 0..count {
                for to in 0..count {
                    let goes = from != to
                        && state.connects(from, to)
                        && state.servers[from].frozen + state.servers[to].frozen == 0;
                    if goes && (state.healed || !self.chance(self.plan.lose)) {
                        state.tell((from, to), now);
                    }
                }
            }
            for at in 0..count {
                state.look_for_failures(at, now);
                self.stand(&mut state, at, now);
            }
        }
    }

    fn stand(&self, state: &mut State, at: usize, now: Ms) {
        let server = &state.servers[at];
        let Some(master) = server.view.follows[at] else { return };
        let has_failed = server.view.failed[master].is_some();
        if server.frozen == 0 && has_failed && now >= server.view.stands {
            self.promote(state, at, Promotion::Force);
        }
    }

    /// A replica takes the place of its master.
    pub(super) fn promote(&self, state: &mut State, at: usize, how: Promotion) {
        let now = self.now();
        let Some(master) = state.servers[at].view.follows[at] else { return };
        if state.servers[at].frozen > 0 {
            return;
        }
        let is_near = state.connects(at, master) && state.servers[master].frozen == 0;
        if how == Promotion::Graceful {
            if !is_near {
                return;
            }
            state.copy((master, at));
        }
        let view = &mut state.servers[at].view;
        let highest = view.epochs.iter().max().copied().unwrap_or(0);
        view.current = view.current.max(highest) + 1;
        view.stands = now + 4 * view.node_timeout;
        let (epoch, had, slots) = (view.current, view.epochs[master], view.slots(master));
        if how != Promotion::Takeover {
            let (voters, needed) = (view.voters().collect::<Vec<_>>(), view.needed());
            let granted = voters.into_iter().filter(|voter| {
                let connects = state.connects(at, *voter) && state.servers[*voter].frozen == 0;
                connects
                    && state.servers[*voter].view.vote(*voter, (master, epoch, had), &slots, now)
            });
            let granted: Vec<usize> = granted.collect();
            for voter in &granted {
                let view = &mut state.servers[*voter].view;
                view.current = view.current.max(epoch);
                (view.voted, view.votes[master]) = (epoch, Some(now));
            }
            if granted.len() < needed {
                return;
            }
        }
        let server = &mut state.servers[at];
        let view = &mut server.view;
        view.follows[at] = None;
        view.epochs[at] = epoch;
        for slot in slots {
            view.owners[slot] = Some(at);
            server.moving[slot] = false;
            self.world.tell(Event::Leads { server: at, slot: slot as u16, epoch });
        }
        for part in &server.parts {
            // The process read the copy, and the name of the data changes.
            let data = part.snapshot();
            if server.synced { part.follow(data) } else { part.rename_data() }
        }
    }
}

impl State {
    fn tell(&mut self, (from, to): (usize, usize), now: Ms) {
        let follows = self.servers[from].view.follows[from];
        let claim = self.servers[from].view.claim(from);
        let view = &mut self.servers[to].view;
        view.heard[from] = now;
        view.current = view.current.max(claim.current);
        view.follows[from] = follows;
        // A master that failed counts as one for some time, as others may take its place.
        let timeout = 2 * view.node_timeout;
        let is_back = |since: Ms| follows.is_some() || now > since + timeout;
        view.failed[from].take_if(|since| is_back(*since));
        if follows.is_some() {
            return self.copy((from, to));
        }
        let newer = self.hear(to, &claim);
        if let Some(newer) = newer {
            let update = self.servers[to].view.claim(newer);
            let view = &mut self.servers[from].view;
            view.follows[newer] = None;
            self.hear(from, &update);
        }
        self.collide((from, to));
        self.copy((from, to));
    }

    /// A server hears of a master's slots. Returns another master that has one of them in a higher
    /// epoch.
    fn hear(&mut self, to: usize, claim: &Claim) -> Option<usize> {
        let server = &mut self.servers[to];
        let view = &mut server.view;
        view.current = view.current.max(claim.current);
        view.epochs[claim.of] = view.epochs[claim.of].max(claim.epoch);
        let master = view.follows[to].unwrap_or(to);
        let had_slots = !view.slots(master).is_empty();
        let (mut newer, mut lost) = (None, Vec::new());
        for slot in 0..view.owners.len() {
            let is_its = view.owners[slot] == Some(claim.of);
            if !claim.slots.contains(&slot) {
                view.unclaimed[slot] |= is_its;
                continue;
            }
            let unclaimed = std::mem::take(&mut view.unclaimed[slot]);
            match view.owners[slot].filter(|_| !is_its) {
                Some(owner) if view.epochs[owner] >= claim.epoch && !unclaimed => {
                    newer = Some(owner);
                }
                owner => {
                    view.owners[slot] = Some(claim.of);
                    lost.extend((owner == Some(to)).then_some(slot));
                }
            }
        }
        if had_slots && view.slots(master).is_empty() && master != claim.of {
            // Who has lost all slots follows who took the last one.
            view.follows[to] = Some(claim.of);
            server.synced = false;
        } else {
            for slot in &lost {
                server.parts[*slot].flush_all();
            }
        }
        for slot in lost {
            server.moving[slot] = false;
        }
        newer.filter(|newer| *newer != claim.of)
    }

    /// Two masters with one epoch: the one with the smaller id takes a new one.
    fn collide(&mut self, (from, to): (usize, usize)) {
        let said = self.servers[from].view.epochs[from];
        let view = &mut self.servers[to].view;
        if view.follows[to].is_none() && view.epochs[to] == said && to < from {
            view.current += 1;
            view.epochs[to] = view.current;
        }
    }

    /// A master's data reach its replica.
    fn copy(&mut self, (from, to): (usize, usize)) {
        let is_replica = self.servers[to].view.follows[to] == Some(from);
        if is_replica && self.servers[from].view.follows[from].is_none() {
            for slot in 0..self.servers[to].parts.len() {
                let data = self.servers[from].parts[slot].snapshot();
                self.servers[to].parts[slot].put_back(data);
            }
            self.servers[to].synced = true;
        }
    }

    fn look_for_failures(&mut self, at: usize, now: Ms) {
        let view = &self.servers[at].view;
        for whom in (0..self.servers.len()).filter(|whom| *whom != at) {
            let agrees = |other: &usize| {
                let server = &self.servers[*other];
                let hears = *other == at || server.frozen == 0 && self.connects(at, *other);
                hears && server.view.is_silent(whom, now)
            };
            let is_new = view.failed[whom].is_none() && view.is_silent(whom, now);
            if is_new && view.voters().filter(agrees).count() >= view.needed() {
                for other in 0..self.servers.len() {
                    if self.connects(at, other) && self.servers[other].frozen == 0 {
                        self.servers[other].view.failed[whom].get_or_insert(now);
                    }
                }
                return;
            }
        }
    }
}

impl View {
    fn vote(
        &self,
        own: usize,
        (master, epoch, had): (usize, u64, u64),
        slots: &[usize],
        now: Ms,
    ) -> bool {
        let owned = |slot: &usize| self.owners[*slot].is_none_or(|owner| self.epochs[owner] <= had);
        let recent = self.votes[master].is_some_and(|at| now < at + 2 * self.node_timeout);
        self.follows[own].is_none()
            && !self.slots(own).is_empty()
            && self.voted < epoch
            && !recent
            && slots.iter().all(owned)
    }
}
