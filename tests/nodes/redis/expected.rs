//! The short path through the Lua script. A batch names the marker (the key `palisade:generation`)
//! that its client read last. If the server still has this marker, the script does not return it
//! again. The replies to the ops are the same on both paths, and the client misses no change.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use palisade::node::spi::{Ballot, ClaimEnd, Slots};

use palisade::internal::lineage::{Handover, ReplicationId};

use super::*;
use crate::support::marker::rewrite;
use crate::support::proxy::Proxy;

/// A node behind a proxy that counts the replies with the marker, which the short path leaves out.
struct Watched {
    node: RedisNode,
    shown: Arc<AtomicUsize>,
    _proxy: Proxy,
}

impl Watched {
    fn of(server: &Server) -> Self {
        let (proxy, shown) = (Proxy::to(&server.addr()), Arc::<AtomicUsize>::default());
        let (count, marker) = (Arc::clone(&shown), "\np1 ");
        proxy.edit(move |bytes| {
            let found = bytes.windows(marker.len()).filter(|w| *w == marker.as_bytes()).count();
            count.fetch_add(found, SeqCst);
        });
        let url = format!("redis://{}", proxy.addr());
        let node = RedisNode::builder(url).trust_fresh(true).build().unwrap();
        Self { node, shown, _proxy: proxy }
    }

    async fn send(&self, terms: Terms, ops: Vec<Op>) -> Replies {
        batch(&self.node, terms, ops, Duration::from_secs(10)).await
    }
}

#[tokio::test]
async fn who_finds_what_it_expects_hears_the_clock_alone() {
    let server = Server::start(&[]);
    let watched = Watched::of(&server);
    let a = owner();
    watched.send(LONG, vec![]).await;
    let before = watched.shown.load(SeqCst);
    for _ in 0..20 {
        let (mut take, mut give) = (Vec::new(), Vec::new());
        for name in ["k", "l", "m"] {
            take.push(acquire(name, a));
            give.push(Op::Release {
                mode: LockMode::Exclusive,
                keys: LockKeys::new(name),
                owner: a,
                meta: false,
            });
        }
        for ops in [take, give] {
            let got = watched.send(LONG, ops).await;
            assert!(got.items.iter().all(Result::is_ok), "{got:?}");
            assert_eq!(got.facts.unwrap().quarantine_len, LONG.max_ttl);
        }
    }
    assert_eq!(watched.shown.load(SeqCst), before, "the script took the long way");
}

/// Returns the number of calls of each Redis command that the ops of two batches cause. Calls that
/// a batch without ops would cause, too, are not counted.
async fn commands(
    server: &Server,
    node: &RedisNode,
    batches: [Vec<Op>; 2],
    notes: u64,
) -> Vec<(String, u64)> {
    batch(node, LONG, vec![], TTL).await;
    server.cli(&["config", "resetstat"]);
    for ops in batches {
        let got = batch(node, LONG, ops, TTL).await;
        assert!(got.items.iter().all(Result::is_ok), "{got:?}");
    }
    let stats = server.cli(&["info", "commandstats"]);
    let calls = stats.lines().filter_map(|line| {
        let (name, calls) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), calls.split(',').next()?.parse().ok()?))
    });
    let mut calls: Vec<(String, u64)> = calls.collect();
    calls.retain(|(name, _)| !["evalsha", "config|resetstat", "time", "info"].contains(&&name[..]));
    // Each of the two batches reads marker and note with an MGET, and `notes` of them write the
    // note.
    for (name, calls) in &mut calls {
        *calls -= match &**name {
            "mget" => 2,
            "set" => notes,
            _ => 0,
        };
    }
    calls.retain(|(_, calls)| *calls > 0);
    calls.sort();
    calls
}

/// Mode, keys and owners of acquires and their releases, and the Redis commands that they need.
type Kind<'a> = (LockMode, &'a LockKeys, &'a [OwnerToken], &'a [(&'a str, u64)]);

#[tokio::test]
async fn a_free_name_costs_few_commands_for_every_kind_of_lock() {
    let server = Server::start(&[]);
    let (node, owners) = (fresh(&server), [owner(), owner(), owner()]);
    let several = LockKeys::many(["l", "m", "n"].map(LockKeys::new).to_vec());
    let pair = |mode: LockMode, keys: &LockKeys, owners: &[OwnerToken]| {
        let now = SystemEnv.wall_micros();
        let acquire = |owner: &OwnerToken| acquire_as(mode, keys.clone(), *owner, now);
        let release = |owner: &OwnerToken| release_as(mode, keys.clone(), *owner);
        [owners.iter().map(acquire).collect(), owners.iter().map(release).collect()]
    };
    let slots = LockMode::Slot(Slots::any(4));
    let (k, p) = (LockKeys::new("k"), LockKeys::new("p"));
    // One ZADD and one PEXPIREAT only ask for the rights.
    let read = [("getrange", 1), ("pexpire", 1), ("pexpireat", 2), ("pttl", 2), ("zadd", 2)];
    let read_by = |n| [&read[..], &[("zrange", 2), ("zrem", n)]].concat();
    let (one, three) = (read_by(1), read_by(3));
    let kinds: [Kind<'_>; 5] = [
        (LockMode::Exclusive, &k, &owners[..1], &[("del", 1), ("get", 1), ("set", 2)]),
        (LockMode::Shared, &k, &owners[..1], &one),
        // Consecutive ops of readers in a batch share all commands except ZREM, one per reader.
        (LockMode::Shared, &k, &owners, &three),
        (slots, &p, &owners[..1], &[("getrange", 2), ("pttl", 1), ("set", 2)]),
        (
            LockMode::Exclusive,
            &several,
            &owners[..1],
            &[("del", 1), ("exists", 3), ("getrange", 3), ("mget", 1), ("set", 6)],
        ),
    ];
    for (mode, keys, owners, expected) in kinds {
        let expected: Vec<_> = expected.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        // The first pair of batches finds no key of the lock, and on a slow machine the time in the
        // server's marker may be old. Both cause other commands, so the measurement is repeated.
        let (mut got, end) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while got != expected {
            assert!(Instant::now() < end, "{mode:?}: {got:?} instead of {expected:?}");
            got = commands(&server, &node, pair(mode, keys, owners), 1).await;
        }
    }
}

/// Returns the fence (the fencing token) of a grant.
fn granted(reply: &Result<Reply, NodeError>) -> u64 {
    match reply {
        Ok(Reply::Granted { fence } | Reply::Permit { fence, .. }) => *fence,
        other => panic!("not granted: {other:?}"),
    }
}

/// Mode and keys of a lock, and the Redis commands that two of its renewals need.
type Renewal<'a> = (LockMode, &'a LockKeys, &'a [(&'a str, u64)]);

#[tokio::test]
async fn a_renewal_costs_few_commands_for_every_kind_of_lock() {
    let server = Server::start(&[]);
    let (node, owner) = (fresh(&server), owner());
    // Soon after a marker was written a lock may be lost.
    facts(&node, LONG).await;
    let marker = server.cli(&["get", "palisade:generation"]);
    let (rest, written) = marker.trim().rsplit_once(' ').expect("a time");
    let before = written.parse::<u64>().expect("a time") - 100_000_000;
    server.cli(&["set", "palisade:generation", &format!("{rest} {before:013}")]);
    let several = LockKeys::many(["l", "m", "n"].map(LockKeys::new).to_vec());
    let (k, doc, p) = (LockKeys::new("k"), LockKeys::new("doc"), LockKeys::new("p"));
    let slot = LockMode::Slot(Slots::any(4).exactly(2));
    let kinds: [Renewal<'_>; 4] = [
        (LockMode::Exclusive, &k, &[("exists", 2), ("getrange", 4), ("pexpire", 4)]),
        (
            LockMode::Shared,
            &doc,
            &[
                ("getrange", 2),
                ("pexpire", 2),
                ("pexpireat", 2),
                ("pttl", 2),
                ("zadd", 2),
                ("zrange", 2),
                ("zscore", 2),
            ],
        ),
        (slot, &p, &[("getrange", 2), ("pttl", 2), ("set", 2)]),
        (LockMode::Exclusive, &several, &[("getrange", 12), ("pexpire", 12)]),
    ];
    for (mode, keys, expected) in kinds {
        let now = SystemEnv.wall_micros();
        let token = granted(&one(&node, LONG, acquire_as(mode, keys.clone(), owner, now)).await);
        let extend = || {
            let (keys, token) = (keys.clone(), FencingToken::new(token));
            vec![Op::Extend { mode, keys, owner, ttl: TTL, token, meta: None, reassert: None }]
        };
        let expected: Vec<_> = expected.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        // On a slow machine the time in the server's marker may be old, and other commands result.
        let (mut got, end) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while got != expected {
            assert!(Instant::now() < end, "{mode:?}: {got:?} instead of {expected:?}");
            got = commands(&server, &node, [extend(), extend()], 2).await;
        }
    }
}

/// A random number generator with the same sequence on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % n
    }

    fn yes(&mut self) -> bool {
        self.below(2) == 0
    }
}

fn acquire_as(mode: LockMode, keys: LockKeys, owner: OwnerToken, proposal: u64) -> Op {
    Op::Acquire { mode, keys, owner, ttl: TTL, proposal, if_held: None }
}

fn release_as(mode: LockMode, keys: LockKeys, owner: OwnerToken) -> Op {
    Op::Release { mode, keys, owner, meta: false }
}

/// Returns a request (op) that `dice` chooses. The name of its lock or key begins with `side`.
fn op(side: &str, mut dice: Dice, owners: &[OwnerToken], now: u64) -> Op {
    let (name, owner) = (format!("{side}-{}", dice.below(3)), owners[dice.below(3) as usize]);
    let (keys, key): (_, Arc<str>) = (LockKeys::new(&name), format!("{{{name}}}:once").into());
    // Some proposed tokens are smaller than every valid token, so they have no effect.
    let proposal = if dice.below(9) == 0 { 0 } else { now + 300_000 * dice.below(4) };
    // The token is often the lock's current token.
    let token = FencingToken::new(now + 300_000 * dice.below(4));
    let fingerprint = (dice.below(4) == 0).then_some([7; 32]);
    let (lease, retention) = (TTL, Duration::from_secs(3600));
    let several = LockKeys::many((0..3).map(|i| LockKeys::new(&format!("{side}-{i}"))).collect());
    let slots = Slots::any(2 + dice.below(2) as u16);
    match dice.below(28) {
        16..18 => acquire_as(LockMode::Shared, keys, owner, proposal),
        18..20 => release_as(LockMode::Shared, keys, owner),
        20..22 => {
            // Each owner tries the slots in an order of its own. An owner can ask again while it
            // holds a slot.
            let mode = LockMode::Slot(slots.in_order_of(&owner));
            acquire_as(mode, LockKeys::new(&format!("{side}-p")), owner, proposal)
        }
        22..24 => release_as(LockMode::Slot(slots), LockKeys::new(&format!("{side}-p")), owner),
        24 => acquire_as(LockMode::Exclusive, several, owner, proposal),
        25 => {
            let mode = LockMode::Exclusive;
            let if_held = Some(IfHeld::TakeFrom(owners[dice.below(3) as usize]));
            Op::Acquire { mode, keys: several, owner, ttl: TTL, proposal, if_held }
        }
        26..28 => release_as(LockMode::Exclusive, several, owner),
        0..5 => Op::Acquire {
            mode: LockMode::Exclusive,
            keys,
            owner,
            ttl: TTL,
            proposal,
            if_held: match dice.below(6) {
                0..3 => None,
                3 => Some(IfHeld::Watch),
                4 => Some(IfHeld::Queue(PLACE)),
                _ => Some(IfHeld::TakeFrom(owners[dice.below(3) as usize])),
            },
        },
        5..9 => Op::Release { mode: LockMode::Exclusive, keys, owner, meta: dice.below(4) == 0 },
        9 => {
            let slot = LockMode::Slot(slots.exactly(dice.below(2) as u16));
            let (mode, keys) = match dice.below(5) {
                0 => (LockMode::Shared, keys),
                1 => (LockMode::Exclusive, several),
                2 => (slot, LockKeys::new(&format!("{side}-p"))),
                _ => (LockMode::Exclusive, keys),
            };
            let is_one = mode == LockMode::Exclusive && !keys.is_many();
            let meta = (is_one && dice.yes()).then(|| Arc::from(&b"me"[..]));
            Op::Extend { mode, keys, owner, ttl: TTL, token, meta, reassert: None }
        }
        10 if dice.yes() => Op::Raise { keys, owner, token, slot: None },
        10 => Op::Inspect { keys, wait: dice.yes() },
        11 => Op::Claim(Claim { fingerprint, force: dice.yes(), proposal, ..claim(&key, owner) }),
        12 if dice.yes() => Op::RaiseClaim { key, owner, token },
        12 => Op::ExtendClaim {
            ballot: Ballot { key, owner, token, retention, fingerprint },
            lease,
            reassert: None,
        },
        13 => {
            let value = dice.yes().then(|| Arc::from(&b"result"[..]));
            Op::Complete { ballot: Ballot { key, owner, token, retention, fingerprint }, value }
        }
        14 if dice.yes() => {
            let list = Arc::from(&b"[one,two]"[..5 + 4 * dice.below(2) as usize]);
            Op::Steps { ballot: Ballot { key, owner, token, retention, fingerprint }, list }
        }
        14 => Op::Unclaim { key, owner, end: ClaimEnd::Repeatable },
        _ => Op::Lookup { key, retention, fingerprint, born: None, accepted: Duration::ZERO },
    }
}

/// Returns a reply as text, without the values that depend on the time: remaining times, and fences
/// (fencing tokens) that the node raised to the lowest valid one.
fn timeless(reply: &Result<Reply, NodeError>, start: u64) -> String {
    let mut reply = reply.clone();
    let lifted = |fence: &mut u64| {
        if *fence < start {
            *fence = 0;
        }
    };
    let sealed = |rest: &mut Option<Duration>| *rest = rest.map(|_| Duration::ZERO);
    match &mut reply {
        Ok(
            Reply::Granted { fence } | Reply::Permit { fence, .. } | Reply::Claimed { fence, .. },
        ) => lifted(fence),
        Ok(Reply::Readers(readers)) => {
            lifted(&mut readers.fence);
            readers.listed.sort_by_key(|reader| reader.owner);
            readers.listed.iter_mut().for_each(|reader| reader.remaining = Duration::ZERO);
        }
        Ok(Reply::Held { remaining, .. }) => sealed(remaining),
        Ok(Reply::InFlight { remaining }) => *remaining = Duration::ZERO,
        Ok(Reply::Holder(Some(holder))) => {
            sealed(&mut holder.remaining);
            lifted(&mut holder.fence);
        }
        Ok(Reply::Record { state: Some(state), .. }) => {
            sealed(&mut state.lease);
            lifted(&mut state.fence);
        }
        _ => {}
    }
    format!("{reply:?}")
}

/// Returns all keys with the prefix `side`. Each is a text of key and value, without the parts that
/// depend on the time, and the key's remaining time in milliseconds.
fn left_behind(server: &Server, side: &str, start: u64) -> Vec<(String, u64)> {
    let script = "local all = {} for _, k in ipairs(redis.call('KEYS', '*' .. ARGV[1] .. '-*')) do \
        local v = redis.call('TYPE', k).ok if v == 'string' then v = redis.call('GET', k) \
        elseif v == 'zset' then v = redis.call('ZRANGE', k, 0, -1) table.sort(v) \
        v = table.concat(v, ' ') end \
        if string.sub(v, 1, 2) == 'p1' then \
        local fence, till = string.sub(v, 25, 40), string.sub(v, 137, 149) \
        if tonumber(fence) < tonumber(ARGV[2]) then fence = 'F' end \
        if tonumber(till) > 0 then till = 'T' end \
        v = 'record ' .. string.sub(v, 3, 24) .. fence .. string.sub(v, 41, 79) .. \
        string.gsub(string.sub(v, 80, 111), '%c', 'c') .. string.sub(v, 112, 136) .. till .. \
        string.sub(v, 150) end \
        v = string.gsub(v, '%d+([xs]' .. ('%x'):rep(16) .. '%d%d)' .. ('%d'):rep(13), 'T%1T') \
        if tonumber(v) and #v == 16 and tonumber(v) < tonumber(ARGV[2]) then v = 'F' end \
        if #v % 51 == 0 then v = string.gsub(v, ('.'):rep(51), function(slot) \
        local fence = string.sub(slot, 36) \
        if tonumber(fence) < tonumber(ARGV[2]) then fence = 'F' end \
        return string.sub(slot, 1, 23) .. fence end) end \
        all[#all + 1] = string.gsub(k, ARGV[1], '') .. ' ' .. v .. '|' .. redis.call('PTTL', k) \
        end table.sort(all) return table.concat(all, '\\n')";
    let text = server.cli(&["--raw", "eval", script, "0", side, &start.to_string()]);
    let split = |line: &str| {
        let (what, rest) = line.rsplit_once('|').expect("name, value and time");
        (what.to_owned(), rest.parse().expect("it expires"))
    };
    text.lines().map(split).collect()
}

#[tokio::test]
async fn an_expectation_changes_no_answer_and_no_key() {
    let server = Server::start(&[]);
    // Two clients run equal batches. An op in front of each batch of `long`, whose proposal (zero)
    // is out of range, makes the whole batch take the long path.
    let (expects, long) = (Watched::of(&server), Watched::of(&server));
    let out_of_range = |round: u32| acquire(&format!("front-{round}"), owner());
    let owners = [owner(), owner(), owner()];
    let start = facts(&expects.node, LONG).await.node_micros;
    let mut dice = Dice(11);
    let (mut short, mut rounds) = (0, 0);
    for round in 0..400 {
        // Most rounds of the loop send one op, as a single caller does. Some send several ops.
        let n = if dice.yes() { 1 } else { dice.below(12) };
        let (now, seeds): (_, Vec<u64>) =
            (SystemEnv.wall_micros(), (0..n).map(|_| dice.below(1 << 30)).collect());
        let ops = |side: &str| -> Vec<Op> {
            seeds.iter().map(|seed| op(side, Dice(*seed), &owners, now)).collect()
        };
        let at = expects.shown.load(SeqCst);
        let a = expects.send(LONG, ops("side")).await;
        short += usize::from(expects.shown.load(SeqCst) == at);
        let in_front = std::iter::once(out_of_range(round));
        let mut b = long.send(LONG, in_front.chain(ops("full")).collect()).await;
        assert!(matches!(b.items.remove(0), Ok(Reply::Granted { .. })));
        rounds += 1;
        let items = |replies: &Replies| -> Vec<String> {
            replies.items.iter().map(|reply| timeless(reply, start)).collect()
        };
        assert_eq!(items(&a), items(&b), "round {round}: {:?}", ops("side"));
    }
    assert!(short > 10, "{short} of {rounds} batches were answered the short way");
    let (a, b) = (left_behind(&server, "side", start), left_behind(&server, "full", start));
    assert!(a.len() > 10, "{a:?}");
    for ((a, rest), (b, other)) in a.iter().zip(&b) {
        assert_eq!(a, b);
        // Both batches were sent one right after the other, so the keys' remaining ttls are close.
        assert!(rest.abs_diff(*other) < 15_000, "{a}: {rest} and {other}");
    }
    assert_eq!(a.len(), b.len());
}

/// Returns a client that has held the lock `k`: it knows the marker, and `k` has a fencing token.
async fn acquainted(server: &Server, terms: Terms) -> RedisNode {
    let node = fresh(server);
    let a = owner();
    fence(one(&node, terms, acquire("k", a)).await);
    one(&node, terms, release("k", a)).await.unwrap();
    node
}

/// The name of other data.
fn another() -> ReplicationId {
    ReplicationId::parse(&"0".repeat(40)).unwrap()
}

fn soon(ms: u64) -> u64 {
    SystemEnv.wall_micros() / 1_000 + ms
}

#[tokio::test]
async fn a_history_that_began_unseen_is_noticed() {
    let server = Server::start(&[]);
    let node = acquainted(&server, LONG).await;
    // The connection and the stored marker (the key with the data history) remain the same. But the
    // server becomes a replica and a master again, so its data history changes.
    server.cli(&["replicaof", "127.0.0.1", &free_port().to_string()]);
    server.cli(&["replicaof", "no", "one"]);
    assert_quarantined(one(&node, LONG, acquire("k", owner())).await);
    assert_quarantined(one(&node, LONG, acquire("k", owner())).await);
    let server = Server::start(&[]);
    let node = acquainted(&server, LONG).await;
    server.cli(&["replicaof", "127.0.0.1", &free_port().to_string()]);
    let refused = one(&node, LONG, acquire("k", owner())).await.expect_err("a replica grants");
    assert!(!refused.is_ambiguous(), "{refused}");
}

#[tokio::test]
async fn a_marker_that_changed_unseen_is_noticed() {
    for case in ["another history", "quarantine", "a digit"] {
        let server = Server::start(&[]);
        let node = acquainted(&server, LONG).await;
        match case {
            "another history" => rewrite(&server, |m| (m.replid, m.process.run) = (another(), 7)),
            "quarantine" => rewrite(&server, |m| m.since = soon(0)),
            _ => {
                let text = server.cli(&["get", "palisade:generation"]);
                let spoilt = format!("{}x{}", &text[..60], &text[61..]);
                server.cli(&["set", "palisade:generation", &spoilt]);
            }
        }
        let got = one(&node, LONG, acquire("k", owner())).await;
        assert!(matches!(got, Ok(Reply::Quarantined { .. })), "{case}: {got:?}");
    }
}

#[tokio::test]
async fn a_handover_that_began_unseen_is_noticed() {
    let server = Server::start(&[]);
    let node = acquainted(&server, LONG).await;
    rewrite(&server, |m| m.handover = Some(Handover::Closed(soon(60_000))));
    let refused = one(&node, LONG, acquire("k", owner())).await;
    assert_eq!(fault(refused), (NodeFault::HandingOver, false));
    let server = Server::start(&[]);
    let node = acquainted(&server, LONG).await;
    rewrite(&server, |m| m.handover = Some(Handover::Settling(soon(60_000))));
    let kept = one(&node, LONG, acquire("k", owner())).await;
    assert!(matches!(kept, Ok(Reply::Held { foreign: false, .. })), "{kept:?}");
}

#[tokio::test]
async fn a_length_that_others_asked_for_unseen_is_noticed() {
    let server = Server::start(&[]);
    let (node, other) = (acquainted(&server, SHORT).await, fresh(&server));
    assert_eq!(facts(&other, LONG).await.quarantine_len, LONG.max_ttl);
    let got = batch(&node, SHORT, vec![acquire("k", owner())], TTL).await;
    assert!(matches!(got.items[..], [Ok(Reply::Granted { .. })]), "{got:?}");
    assert_eq!(got.facts.unwrap().quarantine_len, LONG.max_ttl);
}
