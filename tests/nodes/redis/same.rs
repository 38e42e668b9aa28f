//! Random operations, drawn from a seed, run on a memory node and on a Redis server. Both must
//! return equal replies.

use crate::support::marker::rewrite;
use palisade::MemoryNode;
use palisade::internal::lineage::{Handover, ReplicationId};
use palisade::node::spi::{Ballot, ClaimEnd, Enlist, QuarantineId, Slots, Want};

use super::*;

/// Largest difference between two durations that count as equal. They differ because a slow machine
/// sends the replies of the two nodes at different times. Two different durations that the test
/// draws differ by more.
const APART: Duration = Duration::from_secs(15);
const SPANS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(600)];
/// Length of a lease that has ended when the next batch of requests is sent.
const OVER: Duration = Duration::from_millis(1);
const TTLS: [Duration; 5] = [OVER, SPANS[0], SPANS[1], SPANS[0], SPANS[1]];
const HOUR_MS: u64 = 3_600_000;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    fn maybe<T>(&mut self, one_in: u64, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(one_in) == 0).then(|| value(self))
    }
}

/// A generator of ops (requests to a node) with few keys and few owners, so that the ops affect
/// each other.
struct Drawn {
    dice: Dice,
    /// Base value of tokens and proposals, in microseconds. The generator adds small numbers to
    /// this value.
    base: u64,
    owners: Vec<OwnerToken>,
}

impl Drawn {
    fn new(seed: u64) -> Self {
        let owners = (1..4).map(OwnerToken::from_random).collect();
        Self { dice: Dice(seed), base: SystemEnv.wall_micros(), owners }
    }

    fn owner(&mut self) -> OwnerToken {
        self.dice.of(&self.owners)
    }

    fn token(&mut self) -> FencingToken {
        FencingToken::new(self.base + self.dice.below(8))
    }

    /// Returns a token. One in five is too far in the future for clocks that are correct within the
    /// clock error, so a node must refuse or lower it.
    fn any_token(&mut self) -> FencingToken {
        let far = self.dice.maybe(5, |_| 10_000_000_000).unwrap_or(0);
        FencingToken::new(self.token().get() + far)
    }

    /// Draws an operation on one of two semaphores.
    fn permit(&mut self, named: [QuarantineId; 2]) -> [Op; 2] {
        let reassert = self.dice.maybe(2, |_| named);
        let of = |node: usize| reassert.map(|both| both[node]);
        let keys = LockKeys::new(self.dice.of(&["p", "q"]));
        let (owner, token, ttl) = (self.owner(), self.token(), self.dice.of(&TTLS));
        let slots = Slots::any(self.dice.of(&[1, 2, 3]));
        let slot = self.dice.below(slots.of.into()) as u16;
        let start = Slots { want: Want::First { start: slot, step: 1 }, ..slots };
        let any = LockMode::Slot(self.dice.of(&[start, start, slots.exactly(slot)]));
        let both = |op: Op| [op.clone(), op];
        match self.dice.below(10) {
            0..4 => {
                let (mode, proposal) = (any, token.get());
                let if_held = self.dice.maybe(3, |_| IfHeld::Watch);
                both(Op::Acquire { mode, keys, owner, ttl, proposal, if_held })
            }
            4 => both(Op::Raise { keys, owner, token: self.any_token(), slot: Some(slot) }),
            5..7 => {
                let op = |node| {
                    let (keys, mode) = (keys.clone(), LockMode::Slot(slots.exactly(slot)));
                    Op::Extend { mode, keys, owner, ttl, token, meta: None, reassert: of(node) }
                };
                [op(0), op(1)]
            }
            7..9 => both(Op::Release { mode: any, keys, owner, meta: false }),
            _ => both(Op::Inspect { keys, wait: self.dice.below(2) == 0 }),
        }
    }

    /// Draws an operation on two locks together.
    fn several(&mut self, named: [QuarantineId; 2]) -> [Op; 2] {
        let reassert = self.dice.maybe(2, |_| named);
        let mode = LockMode::Exclusive;
        let keys = LockKeys::many(["b", "d"].map(LockKeys::new).to_vec());
        let (owner, from, token) = (self.owner(), self.owner(), self.token());
        let ttl = self.dice.of(&TTLS);
        let both = |op: Op| [op.clone(), op];
        match self.dice.below(8) {
            0..4 => {
                let if_held = self.dice.maybe(2, |_| IfHeld::TakeFrom(from));
                both(Op::Acquire { mode, keys, owner, ttl, proposal: token.get(), if_held })
            }
            4 => both(Op::Raise { keys, owner, token: self.any_token(), slot: None }),
            5 | 6 => [0, 1].map(|node| {
                let (keys, reassert) = (keys.clone(), reassert.map(|both| both[node]));
                Op::Extend { mode, keys, owner, ttl, token, meta: None, reassert }
            }),
            _ => both(Op::Release { mode, keys, owner, meta: false }),
        }
    }

    /// Draws one operation, as one version for each of the two nodes. `named` contains the current
    /// quarantine of each node, because an op that stores a lock again must name it.
    fn op(&mut self, named: [QuarantineId; 2]) -> [Op; 2] {
        let wrong = QuarantineId { history: 1, since: 1 };
        let reassert = self.dice.maybe(2, |dice| dice.of(&[named, [wrong; 2]]));
        let of = |node: usize| reassert.map(|both| both[node]);
        let both = |op: Op| [op.clone(), op];
        // The second lock never has metadata. So its renewals and releases take the short path of
        // the script.
        let (name, has_meta) = self.dice.of(&[("a", true), ("b", false), ("d", false)]);
        let mode = self.dice.of(&[LockMode::Exclusive, LockMode::Exclusive, LockMode::Shared]);
        let keys = LockKeys::new(name);
        let key: Arc<str> = self.dice.of(&["r", "s"]).into();
        let (owner, token, ttl) = (self.owner(), self.token(), self.dice.of(&TTLS));
        let retention = self.dice.of(&[2 * SPANS[1], 4 * SPANS[1]]);
        let fingerprint = self.dice.maybe(2, |dice| dice.of(&[[1; 32], [2; 32]]));
        match self.dice.below(10) {
            0 | 1 => return self.permit(named),
            2 => return self.several(named),
            _ => {}
        }
        let text =
            |dice: &mut Dice, longest: u64| Arc::from(vec![b'x'; dice.below(longest) as usize]);
        match self.dice.below(20) {
            0..3 => {
                let from = self.owner();
                let if_held =
                    self.dice.maybe(2, |dice| dice.of(&[IfHeld::Watch, IfHeld::TakeFrom(from)]));
                both(Op::Acquire { mode, keys, owner, ttl, proposal: token.get(), if_held })
            }
            3 => both(Op::Raise { keys, owner, token: self.any_token(), slot: None }),
            4..6 => {
                let meta = self
                    .dice
                    .maybe(2, |dice| text(dice, 3))
                    .filter(|_| has_meta && !mode.is_shared());
                let op = |node| {
                    let (keys, meta, reassert) = (keys.clone(), meta.clone(), of(node));
                    Op::Extend { mode, keys, owner, ttl, token, meta, reassert }
                };
                [op(0), op(1)]
            }
            6..8 => both(Op::Release { mode, keys, owner, meta: has_meta && !mode.is_shared() }),
            8 => both(Op::Inspect { keys, wait: self.dice.below(2) == 0 }),
            9 => {
                let entry = self.dice.maybe(2, |dice| text(dice, 3)).filter(|e| !e.is_empty());
                both(Op::Enlist(Enlist { key: "e".into(), owner, ttl, entry, news: false }))
            }
            10..13 => {
                let created = self.dice.maybe(3, |dice| dice.of(&[HOUR_MS, 10 * HOUR_MS, 0]));
                let created = created.map(|age| self.base / 1_000 - age);
                both(Op::Claim(Claim {
                    lease: ttl,
                    retention,
                    proposal: token.get(),
                    fingerprint,
                    force: self.dice.below(3) == 0,
                    created,
                    wait: self.dice.below(2) == 0,
                    ..super::claim(&key, owner)
                }))
            }
            13 => both(Op::RaiseClaim { key, owner, token: self.any_token() }),
            14 => {
                let op = |node| {
                    let (key, lease, reassert) = (Arc::clone(&key), ttl, of(node));
                    Op::ExtendClaim {
                        ballot: Ballot { key, owner, token, retention, fingerprint },
                        lease,
                        reassert,
                    }
                };
                [op(0), op(1)]
            }
            15 => {
                let longest = self.dice.of(&[4, 6_000]);
                let value = self.dice.maybe(2, |dice| text(dice, longest));
                both(Op::Complete {
                    ballot: Ballot { key, owner, token, retention, fingerprint },
                    value,
                })
            }
            16 => {
                let list = text(&mut self.dice, 4);
                both(Op::Steps {
                    ballot: Ballot { key, owner, token, retention, fingerprint },
                    list,
                })
            }
            17 | 18 => {
                let end = self.dice.of(&[ClaimEnd::Undone, ClaimEnd::Repeatable, ClaimEnd::Lapsed]);
                both(Op::Unclaim { key, owner, end })
            }
            _ => {
                let accepted = Duration::ZERO;
                both(Op::Lookup { key, retention, fingerprint, born: None, accepted })
            }
        }
    }
}

/// Returns true if the op gives something that is over when the next batch is sent.
fn is_brief(op: &Op) -> bool {
    match op {
        Op::Acquire { ttl, .. } | Op::Extend { ttl, .. } => *ttl == OVER,
        Op::Claim(claim) => claim.lease == OVER,
        Op::ExtendClaim { lease, .. } => *lease == OVER,
        Op::Enlist(enlist) => enlist.ttl == OVER,
        _ => false,
    }
}

/// Lets both nodes go on in a new history as after a planned handover, with all leases from before
/// it.
fn hand_over(memory: &MemoryNode, server: &Server) {
    assert!(memory.close(SPANS[0]));
    memory.hand_over();
    for master in [["127.0.0.1", "1"], ["no", "one"]] {
        server.cli(&["replicaof", master[0], master[1]]);
    }
    let info = server.cli(&["info", "replication"]);
    let replid = info.split("master_replid:").nth(1).unwrap().split_whitespace().next().unwrap();
    let till = SystemEnv.wall_micros() / 1_000 + HOUR_MS;
    rewrite(server, |marker| {
        marker.replid = ReplicationId::parse(replid).unwrap();
        marker.handover = Some(Handover::Settling(till));
    });
}

/// Returns a reply as text without its durations, and the durations separately.
fn shown(reply: &Result<Reply, NodeError>) -> (String, Vec<Duration>) {
    let reply = match reply {
        Ok(reply) => reply,
        Err(e) => return (format!("{:?}", e.fault()), Vec::new()),
    };
    match reply {
        Reply::Held { remaining, foreign } => {
            (format!("held {foreign}"), remaining.iter().copied().collect())
        }
        Reply::Quarantined { remaining, began, .. } => {
            (format!("quarantined {began:?}"), vec![*remaining])
        }
        Reply::Holder(Some(holder)) => {
            let owner = holder.owner.as_ref().map(OwnerToken::as_str);
            let all = (owner, holder.fence, &holder.meta);
            (format!("{all:?}"), holder.remaining.iter().copied().collect())
        }
        Reply::Readers(readers) => {
            // Readers whose leases end in the same millisecond may be listed in any order.
            let mut all: Vec<_> =
                readers.listed.iter().map(|reader| (reader.owner, reader.remaining)).collect();
            all.sort_unstable();
            let owners: Vec<_> = all.iter().map(|(owner, _)| owner.as_str()).collect();
            let spans = all.iter().map(|(_, remaining)| *remaining).collect();
            (format!("{} {} {owners:?}", readers.fence, readers.count), spans)
        }
        Reply::Permits(all) => {
            let one = |p: &palisade::node::spi::SlotGrant| (p.slot, p.owner, p.fence);
            let shown: Vec<_> = all.iter().map(one).collect();
            let owners = all.iter().map(|p| p.owner.as_str()).collect::<String>();
            (format!("{shown:?} {owners}"), all.iter().map(|p| p.remaining).collect())
        }
        Reply::Candidates(all) => {
            let one = |c: &palisade::node::spi::Listed| {
                (c.owner.as_str().to_owned(), Arc::clone(&c.entry))
            };
            let listed: Vec<_> = all.iter().map(one).collect();
            (format!("{listed:?}"), all.iter().map(|c| c.remaining).collect())
        }
        Reply::Claimed { fence, attempt, record, steps, unsure, losses, fresh } => {
            let all = ("claimed", fence, attempt, record, steps, losses.len(), fresh);
            (format!("{all:?}"), vec![*unsure])
        }
        Reply::InFlight { remaining } => ("in flight".into(), vec![*remaining]),
        Reply::Record { state, unsure, losses } => {
            let state = state.as_ref().map(|s| (s.fence, s.attempt, &s.record, s.lease));
            let lease = state.and_then(|s| s.3);
            let state = state.map(|(fence, attempt, record, _)| (fence, attempt, record));
            let all = ("record", state, lease.is_some(), losses.len());
            (format!("{all:?}"), lease.into_iter().chain([*unsure]).collect())
        }
        other => (format!("{other:?}"), Vec::new()),
    }
}

fn are_alike(a: &Result<Reply, NodeError>, b: &Result<Reply, NodeError>) -> bool {
    let ((a, spans), (b, others)) = (shown(a), shown(b));
    let close = |(a, b): (&Duration, &Duration)| a.abs_diff(*b) < APART;
    a == b && spans.len() == others.len() && spans.iter().zip(&others).all(close)
}

/// Length of a quarantine (time in which a node grants nothing) that ends almost at once.
const NONE: Duration = Duration::from_millis(1);

/// Returns a new memory node, a new node on the server, and the terms of their clients. If `once`
/// is true, both nodes have had a quarantine (the time after a loss of data).
async fn nodes(server: &Server, once: bool) -> (MemoryNode, RedisNode, Terms) {
    server.cli(&["flushall"]);
    if !once {
        return (MemoryNode::new(), fresh(server), LONG);
    }
    let node = RedisNode::new(server.url()).unwrap();
    let memory = MemoryNode::builder().quarantined().build();
    // These terms make the floor of the node (its smallest valid fencing token) earlier than the
    // first token of the test.
    let begun = Terms { max_ttl: NONE, clock_error: NONE };
    let batch =
        Batch { terms: begun, not_after: None, remembers: Remembered::default(), ops: Vec::new() };
    memory.call(batch, SystemEnv.now() + Duration::from_secs(60)).await;
    facts(&node, begun).await;
    tokio::time::sleep(20 * NONE).await;
    (memory, node, Terms { max_ttl: NONE, ..LONG })
}

/// Runs one sequence of random operations on both nodes. If the replies differ, the error contains
/// all operations and replies up to the first difference.
async fn history(server: &Server, seed: u64) -> Result<(), String> {
    let once = seed % 2 == 1;
    let (memory, redis, terms) = nodes(server, once).await;
    let mut drawn = Drawn::new(seed);
    let mut log = Vec::new();
    let reborn = drawn.dice.maybe(2, |dice| dice.below(30)).filter(|_| !once);
    let handed = drawn.dice.maybe(2, |dice| 1 + dice.below(20)).filter(|_| !once);
    let mut named = [QuarantineId { history: 0, since: 0 }; 2];
    for round in 0..40 {
        if reborn == Some(round) {
            // Begin a new data history with the same data.
            memory.restart_keeping();
            let other = ReplicationId::parse(&format!("{:040x}", 7)).unwrap();
            rewrite(server, |m| (m.replid, m.process.run) = (other, 7));
            log.push("a new history".to_owned());
        }
        if handed == Some(round) && reborn.is_none() {
            hand_over(&memory, server);
            log.push("a planned handover".to_owned());
        }
        match drawn.dice.below(20) {
            0 => {
                let taken = memory.set_foreign("b", SPANS[0]);
                let ms = SPANS[0].as_millis().to_string();
                let reply = server.cli(&["set", "b", "a stranger's", "nx", "px", &ms]);
                log.push(format!("a stranger's lock: {taken}"));
                if taken != (reply == "OK") {
                    return Err(format!("{}\n  memory {taken}\n  redis {reply}", log.join("\n")));
                }
            }
            1 => {
                memory.delete_foreign("b");
                if server.cli(&["get", "b"]) == "a stranger's" {
                    server.cli(&["del", "b"]);
                }
            }
            _ => {}
        }
        let count = 1 + drawn.dice.below(5);
        let (mut here, mut there, mut ends) = (Vec::new(), Vec::new(), false);
        while here.len() < count as usize && !ends {
            let [a, b] = drawn.op(named);
            ends = is_brief(&a);
            here.push(a);
            there.push(b);
        }
        let deadline = SystemEnv.now() + Duration::from_secs(60);
        let batch = |ops| Batch { terms, not_after: None, remembers: Remembered::default(), ops };
        let a = memory.call(batch(here.clone()), deadline).await;
        let b = redis.call(batch(there), deadline).await;
        for ((op, a), b) in here.iter().zip(&a.items).zip(&b.items) {
            log.push(format!("{op:?}\n    {a:?}"));
            if !are_alike(a, b) {
                return Err(format!("{}\n  redis {b:?}", log.join("\n")));
            }
        }
        let (Some(a), Some(b)) = (a.facts, b.facts) else { return Err("no facts".into()) };
        let data = |f: &Facts| (f.new_history, f.marker_missing, f.began, f.losses.len());
        if round > 0 && data(&a) != data(&b) || a.quarantine.abs_diff(b.quarantine) > APART {
            return Err(format!("{}\n  memory {a:?}\n  redis {b:?}", log.join("\n")));
        }
        if ends {
            tokio::time::sleep(4 * OVER).await;
        }
        named = [&a, &b].map(|f| QuarantineId { history: f.history_id, since: f.since });
    }
    Ok(())
}

#[tokio::test]
async fn a_server_answers_as_the_node_in_memory_does() {
    let server = Server::start(&[]);
    for seed in 0..40 {
        if let Err(differs) = history(&server, seed).await {
            panic!("seed {seed}: {differs}");
        }
    }
}
