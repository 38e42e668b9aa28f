//! Random conditional writes, executed by the script on a real server and by its twin in memory:
//! equal answers, values, lives and hints. `PALISADE_TWIN` sets the number of batches.

#[path = "../../../tests/support/server.rs"]
#[expect(dead_code, unreachable_pub, reason = "the helpers of the tests of real servers")]
mod server;

mod answers;

use std::time::Duration;

use redis::{Client, Connection, Value as Answered};

use self::answers::{are_equal, read};
use self::server::Server;
use super::encode::{self, GroupTerms};
use super::script;
use super::seen::Seen;
use crate::fuzzing::Dice;
use crate::name::LockKeys;
use crate::node::lineage::{Asked, Change, Marker, Note, ReplicationId};
use crate::op::{Ballot, Batch, Op, Place, Remembered, Terms};
use crate::store::lock::{Main, Shown, Text};
use crate::store::planned::Planned;
use crate::store::twin::{Setting, Twin, Value};
use crate::store::write::{
    Ahead, Answer, Class, Extent, Join, Key, Look, Stamped, Step, Take, Waits, Write,
};
use crate::token::{FencingToken, OwnerToken};

const RECORDS: [&str; 3] = ["a", "b", "c"];
const LOCKS: [&str; 2] = ["l", "m"];
/// Of a lock, in the order in which they are sent.
const KEYS: [Key; 4] = [Key::Main, Key::Fence, Key::Meta, Key::Queue];
const QUEUED: [Key; 3] = [Key::Main, Key::Fence, Key::Queue];
const RELEASING: [Key; 4] = [Key::Main, Key::Queue, Key::Meta, Key::Fence];
/// In ms.
const AGE: u64 = 9_000_000_000_000;
const HOUR_MS: u64 = 3_600_000;
/// Between the clock of the script and that of a later command, on a slow machine.
const APART_MS: u64 = 20_000;

impl Dice {
    fn bytes(&mut self) -> Vec<u8> {
        let len = self.of(&[0, 1, 2, 3, 5, 9]);
        (0..len).map(|_| self.of(b"aw-\0\xff")).collect()
    }

    fn stamped(&mut self) -> Stamped {
        let before = self.bytes();
        match self.of(&[None, Some(0), Some(5), Some(HOUR_MS)]) {
            None => before.into(),
            lease => Stamped { before, lease, after: self.bytes() },
        }
    }

    fn look(&mut self) -> Look {
        let whole_if = self.of(&[None, Some((0, b'a')), Some((1, b'w'))]);
        Look::Record { first: self.of(&[1, 2, 4, 30]), whole_if }
    }

    /// Conditions that often hold, then writes.
    fn write(&mut self, there: Option<&Value>, micros: u64) -> Write {
        let class = self.of(&[Class::Grant, Class::Keep, Class::Keep, Class::Undo, Class::Read]);
        let mut steps = Vec::new();
        if self.below(4) == 0 {
            let ahead = self.of(&[0, HOUR_MS * 1_000]);
            steps.push(Step::Clock(micros - HOUR_MS * 1_000, micros + ahead));
        }
        let is_text = match there {
            Some(Value::Text(text)) if self.below(5) > 0 => {
                let len = self.below(text.len().min(9) as u64 + 1) as usize;
                let mut begin = text[..len].to_vec();
                if begin.is_empty() || self.below(6) == 0 {
                    begin.push(b'a');
                }
                steps.push(Step::Begins(begin));
                true
            }
            None if self.below(5) > 0 => {
                steps.push(Step::Absent);
                true
            }
            _ => false,
        };
        if is_text && self.below(4) == 0 {
            steps.push(Step::Show);
        }
        for _ in 0..self.below(4) {
            steps.push(match self.below(5) {
                0 => Step::KeepFor(HOUR_MS * (1 + self.below(9))),
                1 if is_text => Step::Wake(self.below(6) as usize),
                2 if is_text => Step::Part(self.below(12) as usize, self.stamped()),
                3 => {
                    let mut value = self.stamped();
                    if self.below(12) == 0 {
                        // Two of them do not fit into one answer.
                        value.before.resize(700_000, b'a');
                    }
                    let life = self.of(&[None, Some(HOUR_MS), Some(5 * HOUR_MS)]);
                    Step::Set(value, life)
                }
                _ => continue,
            });
        }
        Write { class, keys: &KEYS[..1], names: 1, steps, look: self.look(), joins: None }
    }

    fn owner(&mut self) -> OwnerToken {
        OwnerToken::from_random(u128::from(self.below(3)))
    }

    fn condition(&mut self, there: Option<&Value>) -> Step {
        match there {
            Some(Value::Text(text)) if self.below(5) > 0 => {
                self.of(&[Step::Is(text.clone()), Step::IsOrAbsent(text.clone())])
            }
            Some(Value::Text(text)) if self.below(2) == 0 => {
                let number = String::from_utf8_lossy(text).parse().unwrap_or(9_u64);
                Step::AtMost((number + 1).saturating_sub(self.below(3)))
            }
            Some(_) if self.below(8) == 0 => {
                Step::EndsWithin(self.of(&[1, HOUR_MS - APART_MS, 20 * HOUR_MS]))
            }
            Some(Value::Readers(_)) if self.below(4) == 0 => Step::NoMember(self.owner()),
            Some(Value::Readers(_)) if self.below(4) > 0 => Step::Member(self.owner()),
            None if self.below(5) > 0 => Step::Absent,
            Some(_) if self.below(2) == 0 => Step::Present,
            _ => self.of(&[
                Step::Absent,
                Step::Present,
                Step::Is(b"7".to_vec()),
                Step::IsOrAbsent(b"7".to_vec()),
                Step::AtMost(9),
            ]),
        }
    }

    fn write_of_lock(&mut self, twin: &Twin, main: &str) -> Write {
        let class = self.of(&[Class::Grant, Class::Keep, Class::Keep, Class::Undo, Class::Read]);
        let mut steps = Vec::new();
        for key in KEYS {
            if self.below(3) == 0 {
                let there = twin.keys.get(&key_of(main, key)).map(|(value, _)| value.clone());
                steps.extend([Step::On(key, 0), self.condition(there.as_ref())]);
            }
        }
        for _ in 0..self.below(4) {
            let ms = HOUR_MS * (1 + self.below(9));
            match self.below(6) {
                0 => steps.extend([Step::On(Key::Main, 0), Step::LiveFor(ms)]),
                1 => steps.extend([Step::On(Key::Fence, 0), Step::KeepFor(ms)]),
                2 => steps.extend([Step::On(Key::Fence, 0), Step::Number(self.below(99), ms)]),
                3 => steps.extend([Step::On(Key::Meta, 0), Step::KeepMeta(ms)]),
                4 => {
                    let meta = self.of(&[&b""[..], b"m", b"mm"]).to_vec();
                    steps.extend([Step::On(Key::Meta, 0), Step::Publish(meta, ms)]);
                }
                _ => {
                    let own = self.owner().as_str().as_bytes().to_vec();
                    steps.extend([Step::On(Key::Main, 0), Step::Set(own.into(), Some(ms))]);
                }
            }
        }
        let own = self.owner();
        let extent = Extent {
            fence: self.below(2) == 0,
            reader: (self.below(3) == 0).then_some(own),
            all: self.below(3) == 0,
            kept: false,
            queue: false,
        };
        if self.below(2) == 0 {
            return self.acquire(steps, Extent { all: false, queue: true, ..extent });
        }
        if self.below(3) == 0 {
            let drops = [Step::On(Key::Meta, 0), Step::DropMeta];
            steps.extend(drops.into_iter().filter(|_| self.below(2) == 0));
            let owner = match twin.keys.get(main) {
                Some((Value::Text(text), _)) => OwnerToken::parse(text),
                _ => None,
            };
            let owner = owner.unwrap_or_else(|| self.owner());
            steps.extend([Step::On(Key::Main, 0), Step::Free(owner)]);
            // It needs the queue as the fourth key.
            steps.retain(|step| !matches!(step, Step::Publish(..)));
            let look = Look::Lock(Extent::default());
            return Write { class, keys: &RELEASING, names: 1, steps, look, joins: None };
        }
        steps.extend((self.below(6) == 0).then_some(Step::Refuse));
        Write { class, keys: &KEYS, names: 1, steps, look: Look::Lock(extent), joins: None }
    }

    fn place(&mut self) -> Place {
        let waited = Duration::from_micros(self.of(&[0, 7, 2_000_000, 9_000_000_000]));
        let needs = Duration::from_millis(self.of(&[0, 9, 70]));
        Place { waiter: 7 + self.below(70), waited, needs }
    }

    /// Behind these conditions.
    fn acquire(&mut self, mut steps: Vec<Step>, extent: Extent) -> Write {
        let is_condition = |step: &Step| {
            !matches!(step, Step::Set(..) | Step::Number(..) | Step::LiveFor(_) | Step::KeepFor(_))
                && !matches!(step, Step::KeepMeta(_) | Step::Publish(..))
        };
        steps.retain(is_condition);
        steps.retain(|_| self.below(5) == 0);
        steps.retain(|step| !matches!(step, Step::On(..)));
        let place = self.place();
        let ticket = self.of(&[None, Some(1_000), Some(2_000)]);
        if self.below(2) == 0 {
            let most = self.of(&[0, 1_000_000]);
            let fair = Ahead::OfFair(place.waiter, ticket, most);
            let ahead = self.of(&[Ahead::OfReader(place.micros()), fair]);
            steps.extend([Step::On(Key::Queue, 0), Step::First(ahead)]);
        }
        let (ttl, life) = (HOUR_MS, HOUR_MS * (1 + self.below(9)));
        let proposal = self.of(&[3, 50, 2_000_000]);
        steps.extend([Step::Window, Step::On(Key::Main, 0)]);
        if self.below(2) == 0 {
            let owners: Vec<_> = (0..=self.below(3)).map(|_| self.owner()).collect();
            let prolongs = self.below(3) == 0 && owners.len() == 1;
            let shareable =
                [Step::Shareable(1), Step::Shareable(2), Step::Readable, Step::IsRead(1)];
            steps.extend([self.of(&shareable), Step::On(Key::Fence, 0), Step::AtMost(proposal)]);
            steps.extend([Step::On(Key::Main, 0), Step::Read { owners, ms: ttl, prolongs }]);
            let keep = Step::Keep { first: proposal, low: self.of(&[0, 9]), ms: life };
            steps.extend([Step::On(Key::Fence, 0), keep]);
        } else {
            let reserved = self.of(&[None, Some(OwnerToken::READERS)]);
            let owner = self.owner();
            steps.push(Step::Take(Take { owner, proposal, ttl, life, reserved }));
        }
        let waits = [Waits::Watcher, Waits::Writer(place), Waits::Reader(place)];
        let place = self.of(&[&waits[..], &[Waits::Fair(place, ticket)]].concat());
        let always = self.below(4) == 0;
        let joins = (self.below(4) > 0).then_some(Join { place, always });
        let look = Look::Lock(Extent { fence: true, ..extent });
        Write { class: Class::Grant, keys: &QUEUED, names: 1, steps, look, joins }
    }
}

fn key_of(main: &str, key: Key) -> String {
    let keys = LockKeys::new(main);
    match key {
        Key::Main => keys.lock(),
        Key::Fence => keys.fence(),
        Key::Meta => keys.meta(),
        Key::Queue => keys.queue(),
    }
    .to_owned()
}

struct Lab {
    server: Server,
    con: Connection,
    /// May not publish.
    mute: Connection,
    heard: Connection,
    seen: Seen,
    twin: Twin,
}

impl Lab {
    fn new() -> Self {
        let server = Server::start(&[]);
        let rights = ["acl", "setuser", "mute", "on", ">pw", "~*", "+@all", "resetchannels"];
        assert_eq!(server.cli(&rights), "OK");
        let client = Client::open(server.url()).expect("an address");
        let mute = Client::open(server.url().replace("redis://", "redis://mute:pw@"));
        let open = |client: &Client| client.get_connection().expect("it listens");
        let (mut con, heard) = (open(&client), open(&client));
        let mute = open(&mute.expect("an address"));
        let _: String = script::load(false).query(&mut con).expect("it loads");
        let info: String = redis::cmd("INFO").arg("replication").query(&mut con).expect("facts");
        let replid = info.split("master_replid:").nth(1).expect("an id");
        let replid = ReplicationId::parse(replid.split_whitespace().next().expect("an id"));
        let asked = Asked {
            max_ttl: Duration::ZERO,
            clock_error: Duration::ZERO,
            window: Duration::ZERO,
            longest_window: Duration::ZERO,
            trust_fresh: false,
            allow_eviction: true,
            durable: false,
            disturbed: None,
            epoch: None,
            remembers: Remembered::default(),
            name: 1,
        };
        let marker = Marker::born(0, 0, 1, replid.expect("40 digits"));
        let seen = Seen::new(&marker, Change::default(), asked, None);
        let set = &mut redis::cmd("SET");
        set.arg(encode::MARKER).arg(seen.text()).exec(&mut con).expect("a marker");
        // Somebody waits on the server until then.
        let note = format!("{} {:013}", Note { history: 1, generation: 0, seq: 0, micros: 0 }, AGE);
        let set = &mut redis::cmd("SET");
        set.arg(encode::NOTE).arg(note).exec(&mut con).expect("a note");
        Self { server, con, mute, heard, seen, twin: Twin::default() }
    }

    fn micros(&mut self) -> u64 {
        let (s, us): (u64, u64) = redis::cmd("TIME").query(&mut self.con).expect("a time");
        s * 1_000_000 + us
    }

    /// Returns the answers and the clock of the script.
    fn send(&mut self, batch: &[(&str, Write)], of: Setting) -> (Vec<Answer>, u64) {
        let op = |(key, write): &(&str, Write)| {
            let (token, retention) = (FencingToken::new(1), Duration::ZERO);
            let owner = OwnerToken::from_random(1);
            if write.keys.len() > 1 {
                return Op::Raise { keys: LockKeys::new(key), owner, token, slot: None };
            }
            let key = (*key).into();
            let ballot = Ballot { key, owner, token, retention, fingerprint: None };
            Op::Complete { ballot, value: None }
        };
        let terms = Terms { max_ttl: Duration::ZERO, clock_error: Duration::ZERO };
        let ops: Vec<Op> = batch.iter().map(op).collect();
        let plan = |(_, write): &(&str, Write)| Some(Planned::Write(write.clone()));
        let plans: Vec<_> = batch.iter().map(plan).collect();
        let batch = Batch { terms, not_after: None, remembers: Remembered::default(), ops };
        let not_after = of.is_late.then_some(1);
        let (seen, terms) = (Some(&self.seen), GroupTerms::ALONE);
        let cmd = encode::batch(&batch, &plans, not_after, terms, seen, false);
        let con = if of.is_mute { &mut self.mute } else { &mut self.con };
        let answer: Answered = cmd.query(con).expect("it is executed");
        read(answer, &plans)
    }

    /// Another program writes a key, or another op of a lock.
    fn intrude(&mut self, dice: &mut Dice) {
        let main = dice.of(&LOCKS);
        let mut all = RECORDS.map(str::to_owned).to_vec();
        all.extend(KEYS.map(|key| key_of(main, key)));
        let key = dice.of(&all);
        let end = self.micros() / 1_000 + 5 * HOUR_MS;
        self.server.cli(&["del", &key]);
        self.twin.keys.remove(&key);
        let (value, end) = match dice.below(6) {
            0 => return,
            1 => {
                self.server.cli(&["hset", &key, "f", "v"]);
                (Value::Other, None)
            }
            2 if key == main => {
                let ends = [end - HOUR_MS, 1_000, end];
                let readers: Vec<_> = ends.map(|till| (dice.owner(), till)).to_vec();
                let mut all = Vec::new();
                for (who, till) in readers {
                    self.server.cli(&["zadd", &key, &till.to_string(), who.as_str()]);
                    all.retain(|(other, _)| *other != who);
                    all.push((who, till));
                }
                self.server.cli(&["pexpireat", &key, &end.to_string()]);
                (Value::Readers(all), Some(end))
            }
            _ => {
                let waiter = "0".repeat(48);
                let texts =
                    ["", "7", "11", "1", &format!("1{waiter}"), &format!("0{waiter}"), "1x"];
                let text = dice.of(&texts);
                self.server.cli(&["set", &key, text]);
                let end = (dice.below(2) == 0).then_some(end);
                if let Some(end) = end {
                    self.server.cli(&["pexpireat", &key, &end.to_string()]);
                }
                (Value::Text(text.into()), end)
            }
        };
        self.twin.keys.insert(key, (value, end));
    }

    fn hints(&mut self) -> Vec<String> {
        let end = &mut redis::cmd("PUBLISH");
        let mut heard = Vec::new();
        end.arg("palisade:changed").arg("end").exec(&mut self.con).expect("it may");
        loop {
            let Answered::Array(message) = self.heard.recv_response().expect("a hint") else {
                panic!("no hint")
            };
            match redis::from_redis_value::<(String, String, String)>(Answered::Array(message)) {
                Ok((_, _, key)) if key == "end" => return heard,
                Ok((_, _, key)) => heard.push(key),
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn keys_are_equal(&mut self, what: &str) {
        let now = self.micros() / 1_000;
        let of_locks = LOCKS.iter().flat_map(|main| KEYS.map(|key| key_of(main, key)));
        for key in RECORDS.map(str::to_owned).into_iter().chain(of_locks) {
            let get = redis::cmd("GET").arg(&key).query::<Option<Vec<u8>>>(&mut self.con);
            let left: i64 = redis::cmd("PTTL").arg(&key).query(&mut self.con).expect("a time");
            let end = match self.twin.keys.get(&key) {
                None => {
                    assert_eq!((get.expect("a text"), left), (None, -2), "{what}");
                    continue;
                }
                Some((Value::Other | Value::Readers(_), end)) => {
                    assert!(get.is_err(), "{key}, {what}");
                    end
                }
                Some((Value::Text(text), end)) => {
                    assert!(get.expect("a text").as_ref() == Some(text), "{key}, {what}");
                    end
                }
            };
            match end {
                None => assert_eq!(left, -1, "{key}, {what}"),
                Some(end) => {
                    let there = now + u64::try_from(left).expect("it expires");
                    let twin = &self.twin.keys[&key];
                    assert!(there.abs_diff(*end) < APART_MS, "{key}, {what}: {left}, {twin:?}");
                }
            }
        }
    }
}

#[test]
fn a_server_executes_conditional_writes_as_their_twin_does() {
    let more = std::env::var("PALISADE_TWIN").ok().and_then(|n| n.parse().ok());
    let (mut lab, mut dice) = (Lab::new(), Dice(1));
    let subscribe = redis::cmd("SUBSCRIBE").arg("palisade:changed").get_packed_command();
    lab.heard.send_packed_command(&subscribe).expect("it may");
    lab.heard.recv_response().expect("the answer to it");
    let mut ran = 0;
    for round in 0..more.unwrap_or(1_000) {
        if dice.below(6) == 0 {
            lab.intrude(&mut dice);
        }
        let micros = lab.micros();
        let batch: Vec<(&str, Write)> = (0..=dice.below(6))
            .map(|_| {
                if dice.below(2) == 0 {
                    let main = dice.of(&LOCKS);
                    return (main, dice.write_of_lock(&lab.twin, main));
                }
                let key = dice.of(&RECORDS);
                let there = lab.twin.keys.get(key).map(|(value, _)| value.clone());
                (key, dice.write(there.as_ref(), micros))
            })
            .collect();
        let (is_late, is_full) = (dice.below(12) == 0, dice.below(12) == 0);
        let is_mute = dice.below(6) == 0;
        if is_full {
            lab.server.cli(&["config", "set", "maxmemory", "1"]);
        }
        let mut of = Setting { micros, is_late, is_full, is_mute, is_outside: false };
        let (answers, micros) = lab.send(&batch, of);
        if is_full {
            lab.server.cli(&["config", "set", "maxmemory", "0"]);
        }
        of.micros = micros;
        lab.twin.hints.clear();
        let expected = lab.twin.execute(of, &batch);
        let what = format!("round {round}, {of:?}");
        let differ = |at: &usize| !are_equal(&answers[*at], &expected[*at]);
        if let Some(at) = (0..batch.len()).find(differ) {
            let short = |text: String| text.chars().take(999).collect::<String>();
            let (there, here) = (format!("{:?}", answers[at]), format!("{:?}", expected[at]));
            let write = short(format!("{:?}", batch[at]));
            let all = short(format!("{:?}", &batch[..at]));
            let (there, here) = (short(there), short(here));
            panic!("{what}: {write}\n server {there}\n twin {here}\n behind {all}");
        }
        assert_eq!(lab.hints(), lab.twin.hints, "{what}");
        lab.keys_are_equal(&what);
        ran += answers.iter().filter(|answer| matches!(answer, Answer::Ran(_))).count();
    }
    assert!(ran > 500, "only {ran} writes ran");
}
