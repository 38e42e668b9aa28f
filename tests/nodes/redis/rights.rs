//! The application's user lacks one right at a time: a command of the shipped ACL file, a pattern
//! of keys, or the channel of hints. No op then answers as if nothing were there, and an op that
//! fails changes nothing of others. The test prints a table: right, op, reply.

use std::collections::{BTreeMap, BTreeSet};

use palisade::node::spi::{Ballot, ClaimEnd, Enlist, Holder, Slots};
use redis::aio::MultiplexedConnection;

use super::*;
use crate::acl;

/// Time for an answer on a connection that is there, on a slow machine, too.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for an answer on a new connection.
const CONNECTING: Duration = Duration::from_secs(10);
const MARKER: &str = "palisade:generation";
const NOTE: &str = "palisade:note";
/// Patterns of all keys of the test.
const PATTERNS: [&str; 6] = [MARKER, NOTE, "palisade:none", "palisade:settled", "mine*", "{mine*"];
/// Commands of the script that only read.
const READS: [&str; 12] = [
    "info", "time", "get", "getrange", "mget", "exists", "pttl", "hmget", "strlen", "zrange",
    "zcard", "zscore",
];
/// Returns each key, and a text that shows its value and whether it expires.
const SNAPSHOT: &str = "local all = {}
    for _, key in ipairs(redis.call('KEYS', '*')) do
      all[#all + 1] = key
      all[#all + 1] = string.find(key, '^palisade:[gn]') and redis.call('GET', key)
        or redis.call('DUMP', key) .. (redis.call('PTTL', key) < 0 and ' stays' or ' expires')
    end
    return all";
const PERSIST: &str =
    "for _, k in ipairs(redis.call('KEYS', '*beside*')) do redis.call('PERSIST', k) end return {}";
const WIPE: &str = "for _, key in ipairs(redis.call('KEYS', '*')) do
      if string.find(key, 'mine', 1, true) then redis.call('DEL', key) end
    end
    return {}";

/// What changes the marker before acquires on a new connection, and how many acquires.
const MARKERS: [(&str, &str, usize); 2] = [
    ("no marker", "redis.call('DEL', 'palisade:generation') return {}", 1),
    // The lock was held before the handover, and its key has expired.
    (
        "settling",
        "local m, time = redis.call('GET', 'palisade:generation'), redis.call('TIME')
        local state = 's' .. string.format('%013.0f', time[1] * 1000 + 600000)
        local marker = string.sub(m, 1, 229) .. state .. string.sub(m, 244)
        redis.call('SET', 'palisade:generation', marker)
        redis.call('SET', '{mine}:fence', '7')
        return {}",
        2,
    ),
];

type Snapshot = BTreeMap<String, Vec<u8>>;

/// A name, the ops by a user with all rights that come first, and the op of the case.
type Case = (&'static str, Vec<Op>, Op);

fn locked(owner: OwnerToken, token: u64) -> Op {
    let mut op = acquire("mine", owner);
    if let Op::Acquire { proposal, .. } = &mut op {
        *proposal = token;
    }
    op
}

/// Returns the op on two locks instead of one.
fn of_two(mut op: Op) -> Op {
    if let Op::Acquire { keys, .. } | Op::Extend { keys, .. } | Op::Release { keys, .. } = &mut op {
        *keys = LockKeys::many(["mine:1", "mine:2"].map(LockKeys::new).to_vec());
    }
    op
}

fn about_locks(a: OwnerToken, b: OwnerToken, t: u64) -> Vec<Case> {
    let (theirs, mine) = (locked(b, t), locked(a, t));
    let (mode, keys, token) =
        (LockMode::Exclusive, LockKeys::new("mine"), FencingToken::new(t + 1));
    let inspect = |wait| Op::Inspect { keys: keys.clone(), wait };
    let extended = |meta: Option<&[u8]>| extend("mine", a, t, meta);
    let released = |meta| Op::Release { mode, keys: keys.clone(), owner: a, meta };
    let raised = |slot| Op::Raise { keys: keys.clone(), owner: a, token, slot };
    let permit = |op| in_mode(op, LockMode::Slot(Slots::any(3)));
    let first_slot = |op| in_mode(op, LockMode::Slot(Slots::any(3).exactly(0)));
    let waits = |owner| if_held(locked(owner, t), IfHeld::Queue(PLACE));
    let fair = IfHeld::Fair { place: PLACE, ticket: None };
    vec![
        ("acquire", vec![], mine.clone()),
        ("acquire, held", vec![theirs.clone()], mine.clone()),
        ("acquire, readers", vec![shared(theirs.clone())], mine.clone()),
        ("acquire, watches", vec![theirs.clone()], if_held(mine.clone(), IfHeld::Watch)),
        ("acquire, waits", vec![theirs.clone()], waits(a)),
        ("acquire, fair", vec![theirs.clone()], if_held(mine.clone(), fair)),
        ("take over", vec![theirs.clone()], if_held(mine.clone(), IfHeld::TakeFrom(b))),
        ("extend", vec![mine.clone()], extended(None)),
        ("extend, metadata", vec![mine.clone()], extended(Some(b"m"))),
        ("extend, absent", vec![], extended(None)),
        ("release", vec![mine.clone()], released(false)),
        ("release, metadata", vec![mine.clone(), extended(Some(b"m"))], released(true)),
        ("release, awaited", vec![mine.clone(), waits(b)], released(false)),
        ("release, another's", vec![theirs.clone()], released(false)),
        ("raise", vec![mine.clone()], raised(None)),
        ("raise, reader", vec![shared(mine.clone())], raised(None)),
        ("inspect", vec![mine.clone(), extended(Some(b"m"))], inspect(false)),
        ("inspect, free", vec![], inspect(false)),
        ("inspect, readers", vec![shared(mine.clone())], inspect(true)),
        ("inspect, permits", vec![permit(mine.clone())], inspect(false)),
        ("read", vec![], shared(mine.clone())),
        ("read, beside", vec![shared(theirs.clone())], shared(mine.clone())),
        ("read, held", vec![theirs.clone()], shared(waits(a))),
        ("read, extend", vec![shared(mine.clone())], shared(extended(None))),
        ("downgrade", vec![mine.clone()], shared(extended(None))),
        ("read, release", vec![shared(mine.clone())], shared(released(false))),
        ("permit", vec![permit(theirs.clone())], permit(mine.clone())),
        ("permit, new", vec![], permit(mine.clone())),
        ("permit, extend", vec![permit(mine.clone())], first_slot(extended(None))),
        ("permit, release", vec![permit(mine.clone())], first_slot(released(false))),
        ("permit, raise", vec![permit(mine.clone())], raised(Some(0))),
        ("two", vec![], of_two(mine.clone())),
        ("two, held", vec![of_two(theirs)], of_two(mine.clone())),
        ("two, extend", vec![of_two(mine.clone())], of_two(extended(None))),
        ("two, release", vec![of_two(mine)], of_two(released(false))),
    ]
}

fn about_records(a: OwnerToken, b: OwnerToken, t: u64) -> Vec<Case> {
    let key: Arc<str> = "mine:record".into();
    let claimed = |owner, proposal| Op::Claim(Claim { proposal, ..claim("mine:record", owner) });
    let (token, fingerprint) = (FencingToken::new(t), None);
    let ballot = Ballot { key: key.clone(), owner: a, token, retention: 2 * TTL, fingerprint };
    let value = Some(b"result"[..].into());
    let (mine, done) = (claimed(a, t), Op::Complete { ballot: ballot.clone(), value });
    let (retention, accepted) = (2 * TTL, Duration::ZERO);
    let lookup = Op::Lookup { key: key.clone(), retention, fingerprint, born: None, accepted };
    let steps = Op::Steps { ballot: ballot.clone(), list: b"steps"[..].into() };
    let extend = Op::ExtendClaim { ballot, lease: TTL, reassert: None };
    let token = FencingToken::new(t + 1);
    let raise = Op::RaiseClaim { key: key.clone(), owner: a, token };
    let end = Op::Unclaim { key, owner: a, end: ClaimEnd::Undone };
    let listed = |owner, entry: &[u8]| {
        let (key, entry) = ("mine:candidates".into(), Some(entry.into()));
        Op::Enlist(Enlist { key, owner, ttl: TTL, entry, news: true })
    };
    vec![
        ("claim", vec![], mine.clone()),
        ("claim, in flight", vec![mine.clone()], claimed(b, t + 1)),
        ("claim, completed", vec![mine.clone(), done.clone()], claimed(b, t + 1)),
        ("complete", vec![mine.clone()], done.clone()),
        ("complete, no record", vec![], done.clone()),
        ("steps", vec![mine.clone()], steps),
        ("extend_claim", vec![mine.clone()], extend.clone()),
        ("extend_claim, none", vec![], extend),
        ("raise_claim", vec![mine.clone()], raise),
        ("unclaim", vec![mine.clone()], end),
        ("lookup", vec![mine.clone()], lookup.clone()),
        ("lookup, completed", vec![mine, done], lookup.clone()),
        ("lookup, no record", vec![], lookup),
        ("enlist", vec![listed(b, b"theirs")], listed(a, b"mine")),
    ]
}

/// Returns all cases, with tokens of the present time: a node would change tokens that are older
/// than the clock error.
fn cases() -> Vec<Case> {
    let (a, b, t) = (owner(), owner(), SystemEnv.wall_micros());
    [about_locks(a, b, t), about_records(a, b, t)].concat()
}

async fn send(node: &RedisNode, op: Op, within: Duration) -> Result<Reply, NodeError> {
    batch(node, LONG, vec![op], within).await.items.remove(0)
}

/// Returns what a caller concludes from the reply, without times and tokens.
fn meaning(reply: &Reply) -> String {
    match reply {
        Reply::Held { foreign, .. } => format!("Held, foreign: {foreign}"),
        Reply::Holder(holder) => {
            let of = |h: &Holder| (h.owner.is_some(), h.meta.is_some());
            format!("Holder, owner and metadata: {:?}", holder.as_ref().map(of))
        }
        Reply::Permits(all) => format!("Permits: {}", all.len()),
        Reply::Candidates(all) => format!("Candidates: {}", all.len()),
        Reply::Claimed { attempt, .. } => format!("Claimed, attempt {attempt}"),
        Reply::Record { state, .. } => {
            let is_completed = state.as_ref().map(|state| state.record.is_some());
            format!("Record, completed: {is_completed:?}")
        }
        other => format!("{other:?}").split([' ', '(']).next().unwrap_or_default().to_owned(),
    }
}

/// The keys that differ, besides the note, which has to be of the same data history and not older.
fn changed(name: &str, before: &Snapshot, after: &Snapshot) -> BTreeSet<String> {
    let note = |of: &Snapshot, n: usize| of[NOTE][..n].to_vec();
    assert_eq!(note(before, 23), note(after, 23), "{name}: another history");
    assert!(note(before, 36) <= note(after, 36), "{name}: the note went back");
    let all = before.keys().chain(after.keys());
    all.filter(|key| *key != NOTE && before.get(*key) != after.get(*key)).cloned().collect()
}

/// The server, and two users that have all rights: a node and a connection.
struct Lab {
    operator: RedisNode,
    con: MultiplexedConnection,
}

impl Lab {
    async fn new(addr: &str) -> Self {
        let operator = RedisNode::builder(format!("redis://operator:operators@{addr}"));
        let client = redis::Client::open(format!("redis://operator:operators@{addr}")).unwrap();
        let patient = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let con = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
        Self { operator: operator.trust_fresh(true).build().unwrap(), con }
    }

    async fn set(&mut self, rights: &[String]) {
        let mut cmd = redis::cmd("ACL");
        cmd.arg("SETUSER").arg("palisade").arg(rights);
        let _: redis::Value = cmd.query_async(&mut self.con).await.expect("the operator may");
    }

    async fn eval(&mut self, script: &str) -> Vec<Vec<u8>> {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(script).arg(0);
        cmd.query_async(&mut self.con).await.expect("the operator may")
    }

    async fn snapshot(&mut self) -> Snapshot {
        let all = self.eval(SNAPSHOT).await;
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        all.chunks(2).map(|pair| (text(&pair[0]), pair[1].clone())).collect()
    }

    /// Runs a case on this node. Returns the reply and the keys that it has changed. Asserts that
    /// the data history is the same, that the note did not go back, and that no other key changed.
    async fn run(
        &mut self,
        node: &RedisNode,
        (name, first, op): Case,
        within: Duration,
    ) -> (Result<Reply, NodeError>, BTreeSet<String>) {
        self.eval(WIPE).await;
        for op in first {
            send(&self.operator, op, PATIENCE).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let before = self.snapshot().await;
        let got = send(node, op, within).await;
        let keys = changed(name, &before, &self.snapshot().await);
        assert!(keys.iter().all(|key| key.contains("mine")), "{name}: others' keys: {keys:?}");
        (got, keys)
    }

    /// Runs `acquires` on a new connection, after `first` has changed the marker. Returns the
    /// meaning of each answer, `None` for an error. Asserts that an error changes nothing. Puts
    /// marker and note back.
    async fn run_anew(
        &mut self,
        node: &RedisNode,
        (name, first, acquires): (&str, &str, usize),
    ) -> Vec<Option<String>> {
        self.eval(WIPE).await;
        let kept = self.snapshot().await;
        self.eval(first).await;
        let mut answers = Vec::new();
        for n in 0..acquires {
            let before = self.snapshot().await;
            let got = send(node, acquire("mine", owner()), CONNECTING).await;
            if let Err(e) = &got {
                let after = self.snapshot().await;
                let keys = changed(name, &before, &after);
                assert!(keys.is_empty(), "{name}, acquire {n}: {e}: {keys:?}");
            }
            answers.push(got.ok().as_ref().map(meaning));
        }
        let text = |key: &str| String::from_utf8_lossy(&kept[key]).into_owned();
        let back = format!(
            "redis.call('MSET', '{MARKER}', '{}', '{NOTE}', '{}')
             redis.call('DEL', 'palisade:settled')
             return {{}}",
            text(MARKER),
            text(NOTE)
        );
        self.eval(&back).await;
        answers
    }
}

/// Returns each right by its name, the rules that take it from the user, and those that give it
/// back.
fn rights() -> Vec<(String, Vec<String>, Vec<String>)> {
    let words = acl::rights(&acl::shipped("users-data.acl"), "palisade");
    let commands = words.iter().filter_map(|word| word.strip_prefix('+'));
    let mut all: Vec<_> =
        commands.map(|c| (c.to_owned(), vec![format!("-{c}")], vec![format!("+{c}")])).collect();
    for pattern in PATTERNS {
        let others = PATTERNS.iter().filter(|other| **other != pattern);
        let take = ["resetkeys".to_owned()].into_iter().chain(others.map(|o| format!("~{o}")));
        all.push((format!("~{pattern}"), take.collect(), vec!["resetkeys".into(), "~*".into()]));
    }
    let channel = "&palisade:changed*".to_owned();
    all.push((channel.clone(), vec!["resetchannels".into()], vec![channel]));
    all
}

#[tokio::test]
async fn a_missing_right_is_an_error_and_never_an_answer() {
    let server = acl::served(&[]);
    let addr = server.lock().unwrap().addr();
    let mut lab = Lab::new(&addr).await;
    let node = || acl::app(&server).trust_fresh(true).build().unwrap();
    let (app, mut full) = (node(), Vec::new());
    send(&lab.operator, acquire("beside", owner()), PATIENCE).await.unwrap();
    lab.eval(PERSIST).await;
    for case in cases() {
        let (name, (got, _)) = (case.0, lab.run(&app, case, PATIENCE).await);
        full.push(meaning(&got.unwrap_or_else(|e| panic!("{name}: {e}"))));
    }
    let mut anew = Vec::new();
    for case in MARKERS {
        anew.push(lab.run_anew(&node(), case).await);
    }
    assert!(anew.iter().flatten().all(Option::is_some), "{anew:?}");
    for (right, take, give) in rights() {
        lab.set(&take).await;
        // A server closes the connections that listen to a channel which their user loses.
        let seen = || Op::Inspect { keys: LockKeys::new("mine"), wait: false };
        let lost = |e: NodeError| e.fault() != NodeFault::NoPermission;
        while send(&app, seen(), PATIENCE).await.is_err_and(lost) {}
        for (case, full) in cases().into_iter().zip(&full) {
            let name = case.0;
            let (got, changed) = lab.run(&app, case, PATIENCE).await;
            let said = match got {
                Ok(reply) => {
                    assert_eq!(meaning(&reply), *full, "{right}, {name}");
                    full.clone()
                }
                Err(e) => {
                    assert_eq!(e.fault(), NodeFault::NoPermission, "{right}, {name}: {e}");
                    let may_change = e.is_ambiguous() && !READS.contains(&&*right);
                    assert!(may_change || changed.is_empty(), "{right}, {name}: {changed:?}");
                    format!("error, changed: {changed:?}")
                }
            };
            println!("{right:<22} {name:<20} {said}");
        }
        let (got, changed) = lab.run(&node(), cases().swap_remove(0), CONNECTING).await;
        match got {
            Ok(reply) => assert_eq!(meaning(&reply), full[0], "{right}, new connection"),
            Err(e) => assert!(changed.is_empty(), "{right}, new connection: {e}: {changed:?}"),
        }
        // An op comes after the marker, which is right whether the op has its keys or not.
        let is_ops = right.contains("mine");
        for (case, full) in MARKERS.into_iter().zip(&anew).filter(|_| !is_ops) {
            let said = lab.run_anew(&node(), case).await;
            let is_right = said.iter().zip(full).all(|(one, full)| one.is_none() || one == full);
            assert!(is_right, "{right}, {}: {said:?}, not {full:?}", case.0);
            println!("{right:<22} {:<20} {said:?}", case.0);
        }
        lab.set(&give).await;
    }
}
