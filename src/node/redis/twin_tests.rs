//! Random conditional writes, executed by the script on a real server and by its twin in memory:
//! equal answers, values, lives and hints. `PALISADE_TWIN` sets the number of batches.

#[path = "../../../tests/support/server.rs"]
#[expect(dead_code, unreachable_pub, reason = "the helpers of the tests of real servers")]
mod server;

use std::time::Duration;

use redis::{Client, Connection, Value as Answered};

use self::server::Server;
use super::encode::{self, GroupTerms};
use super::script;
use super::seen::Seen;
use crate::fuzzing::Dice;
use crate::node::lineage::{Asked, Change, Marker, ReplicationId};
use crate::op::{Ballot, Batch, Op, Remembered, Terms};
use crate::store::records::Planned;
use crate::store::twin::{Setting, Twin, Value};
use crate::store::write::{Answer, Class, Look, Stamped, Step, Write};
use crate::token::{FencingToken, OwnerToken};

const KEYS: [&str; 3] = ["a", "b", "c"];
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
        Look { first: self.of(&[1, 2, 4, 30]), whole_if }
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
        Write { class, steps, look: self.look() }
    }
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
            epoch: None,
            remembers: Remembered::default(),
            name: 1,
        };
        let marker = Marker::born(0, 0, 1, replid.expect("40 digits"));
        let seen = Seen::new(&marker, Change::default(), asked, None);
        let set = &mut redis::cmd("SET");
        set.arg(encode::MARKER).arg(seen.text()).exec(&mut con).expect("a marker");
        Self { server, con, mute, heard, seen, twin: Twin::default() }
    }

    fn micros(&mut self) -> u64 {
        let (s, us): (u64, u64) = redis::cmd("TIME").query(&mut self.con).expect("a time");
        s * 1_000_000 + us
    }

    /// Returns the answers and the clock of the script.
    fn send(&mut self, batch: &[(&str, Write)], of: Setting) -> (Vec<Answer>, u64) {
        let op = |(key, _): &(&str, Write)| {
            let (token, retention) = (FencingToken::new(1), Duration::ZERO);
            let (key, owner) = ((*key).into(), OwnerToken::from_random(1));
            let ballot = Ballot { key, owner, token, retention, fingerprint: None };
            Op::Complete { ballot, value: None }
        };
        let terms = Terms { max_ttl: Duration::ZERO, clock_error: Duration::ZERO };
        let ops: Vec<Op> = batch.iter().map(op).collect();
        let plan = |(op, (_, write)): (&Op, &(&str, Write))| {
            Some(Planned::of_write(op.clone(), write.clone()))
        };
        let plans: Vec<_> = ops.iter().zip(batch).map(plan).collect();
        let batch = Batch { terms, not_after: None, remembers: Remembered::default(), ops };
        let not_after = of.is_late.then_some(1);
        let (seen, terms) = (Some(&self.seen), GroupTerms::ALONE);
        let cmd = encode::batch(&batch, &plans, not_after, terms, seen, false);
        let con = if of.is_mute { &mut self.mute } else { &mut self.con };
        let answer: Answered = cmd.query(con).expect("it is executed");
        read(answer, &plans)
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
        for key in KEYS {
            let get = redis::cmd("GET").arg(key).query::<Option<Vec<u8>>>(&mut self.con);
            let left: i64 = redis::cmd("PTTL").arg(key).query(&mut self.con).expect("a time");
            let end = match self.twin.keys.get(key) {
                None => {
                    assert_eq!((get.expect("a text"), left), (None, -2), "{what}");
                    continue;
                }
                Some((Value::Other, end)) => {
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
                    assert!(there.abs_diff(*end) < APART_MS, "{key}, {what}: {left}");
                }
            }
        }
    }
}

fn read(answer: Answered, plans: &[Option<Planned>]) -> (Vec<Answer>, u64) {
    let as_asked = || plans.iter().map(|_| Answer::Ran(None)).collect();
    let number = |value: &Answered| match value {
        Answered::Int(n) => *n,
        other => panic!("{other:?}"),
    };
    let text = |value: Answered| match value {
        Answered::Nil => None,
        Answered::BulkString(text) => Some(text),
        other => panic!("{other:?}"),
    };
    let mut values = match answer {
        Answered::Int(micros) => return (as_asked(), micros.unsigned_abs()),
        Answered::BulkString(note) => {
            let note = String::from_utf8(note).expect("a note");
            return (as_asked(), note[37..53].parse().expect("a time"));
        }
        Answered::Array(values) => values.into_iter(),
        other => panic!("{other:?}"),
    };
    let micros = number(&values.next().expect("a clock")).unsigned_abs();
    values.next().expect("a note");
    let answers = plans.iter().map(|_| match number(&values.next().expect("a code")) {
        -9 => Answer::Ran(None),
        1 => Answer::Ran(text(values.next().expect("a value"))),
        0 => Answer::Not(text(values.next().expect("a value"))),
        -5 => Answer::Foreign,
        -10 => Answer::Late,
        -16 => Answer::Full,
        code => panic!("{code}"),
    });
    let answers = answers.collect();
    assert!(values.next().is_none(), "more answers than writes");
    (answers, micros)
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
        if dice.below(12) == 0 {
            // Another program.
            let key = dice.of(&KEYS);
            lab.server.cli(&["del", key]);
            lab.twin.keys.remove(key);
            match dice.below(3) {
                0 => {}
                1 => {
                    lab.server.cli(&["hset", key, "f", "v"]);
                    lab.twin.keys.insert(key.to_owned(), (Value::Other, None));
                }
                _ => {
                    lab.server.cli(&["set", key, ""]);
                    lab.twin.keys.insert(key.to_owned(), (Value::Text(Vec::new()), None));
                }
            }
        }
        let micros = lab.micros();
        let batch: Vec<(&str, Write)> = (0..=dice.below(6))
            .map(|_| {
                let key = dice.of(&KEYS);
                let there = lab.twin.keys.get(key).map(|(value, _)| value.clone());
                (key, dice.write(there.as_ref(), micros))
            })
            .collect();
        let (is_late, is_full) = (dice.below(12) == 0, dice.below(12) == 0);
        let is_mute = dice.below(6) == 0;
        if is_full {
            lab.server.cli(&["config", "set", "maxmemory", "1"]);
        }
        let mut of = Setting { micros, is_late, is_full, is_mute };
        let (answers, micros) = lab.send(&batch, of);
        if is_full {
            lab.server.cli(&["config", "set", "maxmemory", "0"]);
        }
        of.micros = micros;
        lab.twin.hints.clear();
        let expected = lab.twin.execute(of, &batch);
        let what = format!("round {round}, {of:?}");
        if let Some(at) = (0..batch.len()).find(|at| answers[*at] != expected[*at]) {
            let short = |text: String| text.chars().take(999).collect::<String>();
            let (there, here) = (format!("{:?}", answers[at]), format!("{:?}", expected[at]));
            let write = short(format!("{:?}", batch[at]));
            panic!("{what}: {write}\n server {}\n twin {}", short(there), short(here));
        }
        assert_eq!(lab.hints(), lab.twin.hints, "{what}");
        lab.keys_are_equal(&what);
        ran += answers.iter().filter(|answer| matches!(answer, Answer::Ran(_))).count();
    }
    assert!(ran > 500, "only {ran} writes ran");
}
