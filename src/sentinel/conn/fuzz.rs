//! No answer of a Sentinel causes a panic, and a malformed answer is never a vote.

use proptest::prelude::*;

use super::*;
use crate::fuzzing::{
    answer, any_bytes, any_value, config, corpus, error, mutated, text as said_text,
};
use crate::sentinel::discovery::Discovery;

fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    Value::Array(texts.into_iter().map(said_text).collect())
}

fn valid_facts(epoch: u64, others: u32) -> Value {
    let (epoch, others) = (epoch.to_string(), others.to_string());
    list([
        "name",
        "orders-a",
        "ip",
        "10.0.0.1",
        "port",
        "6379",
        "flags",
        "master",
        "config-epoch",
        &epoch,
        "quorum",
        "2",
        "num-other-sentinels",
        &others,
        "num-slaves",
        "2",
        "down-after-milliseconds",
        "5000",
    ])
}

fn valid_peers() -> Value {
    let peer = |ip| list(["ip", ip, "port", "26379", "runid", ip]);
    Value::Array(vec![peer("10.0.0.8"), peer("10.0.0.9")])
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// `None` if the name occurs twice. Without the code under test.
fn reads(facts: &Value, name: &str) -> Option<u64> {
    let flat: Vec<String> = match facts {
        Value::Array(items) => items.iter().map(plain).collect::<Option<_>>()?,
        Value::Map(pairs) => {
            pairs.iter().flat_map(|(n, v)| [plain(n), plain(v)]).collect::<Option<_>>()?
        }
        _ => return None,
    };
    let names = flat.iter().step_by(2).filter(|n| *n == name).count();
    let at = flat.iter().step_by(2).position(|n| n == name)?;
    (names == 1).then(|| flat.get(2 * at + 1)?.parse().ok())?
}

fn names(address: &Value) -> Option<(String, u16)> {
    let Value::Array(items) = address else { return None };
    if items.len() != 2 {
        return None;
    }
    let (host, port) = (plain(&items[0])?, plain(&items[1])?.parse::<u16>().ok()?);
    Some((host, port)).filter(|(host, port)| !host.is_empty() && *port > 0)
}

fn part(valid: Value) -> impl Strategy<Value = RedisResult<Value>> {
    const WORDS: &[&str] =
        &["NOPERM no", "ERR unknown command 'SENTINEL'", "NOAUTH no", "IDONTKNOW", "X y"];
    prop_oneof![
        3 => Just(valid.clone()).prop_map(Ok),
        3 => mutated(Just(valid)).prop_map(Ok),
        1 => any_value().prop_map(Ok),
        1 => proptest::sample::select(WORDS).prop_map(|w| Err(error(w))),
    ]
}

fn parts() -> impl Strategy<Value = [RedisResult<Value>; 3]> {
    let facts = (0_u64..4, 0_u32..3).prop_flat_map(|(e, o)| part(valid_facts(e, o)));
    let address = prop_oneof![Just("10.0.0.1"), Just("10.0.0.2")]
        .prop_flat_map(|host| part(list([host, "6379"])));
    (facts, address, part(valid_peers())).prop_map(|(f, a, p)| [f, a, p])
}

#[test]
fn fuzz_corpus_is_never_a_vote() {
    for (line, json) in corpus(include_str!("../../../tests/corpus/sentinel.txt")) {
        let [facts, address, peers] = [0, 1, 2].map(|i| answer(&json[i]));
        let got = judged(facts, address, peers, &Secrets::default());
        assert!(matches!(got, SentinelReply::Failed(..)), "sentinel.txt:{line}: {got:?}");
    }
}

#[test]
fn what_is_valid_is_read() {
    let got = judged(
        Ok(valid_facts(3, 2)),
        Ok(list(["10.0.0.1", "6379"])),
        Ok(valid_peers()),
        &Secrets::default(),
    );
    let SentinelReply::Master { at, facts: Some(facts), peers } = got else { panic!("{got:?}") };
    assert_eq!((at.to_string().as_str(), facts.epoch, peers.len()), ("10.0.0.1:6379", 3, 2));
    let may_not = || Err(error("NOPERM no"));
    let got = judged(may_not(), Ok(list(["10.0.0.1", "6379"])), may_not(), &Secrets::default());
    assert!(matches!(got, SentinelReply::Master { facts: None, .. }), "{got:?}");
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_a_vote_says_what_stands_there([facts, address, peers] in parts()) {
        let got = judged(facts.clone(), address.clone(), peers.clone(), &Secrets::default());
        let SentinelReply::Master { at, facts: read, peers: found } = got else { return Ok(()) };
        let stands = names(&address.unwrap()).unwrap();
        prop_assert_eq!((at.host(), at.port()), (stands.0.as_str(), stands.1));
        match (read, facts) {
            (Some(read), Ok(facts)) => {
                prop_assert_eq!(Some(read.epoch), reads(&facts, "config-epoch"));
                let others = reads(&facts, "num-other-sentinels");
                prop_assert_eq!(Some(u64::from(read.others)), others);
                let down_after = reads(&facts, "down-after-milliseconds");
                prop_assert_eq!(Some(read.down_after.as_millis()), down_after.map(u128::from));
            }
            (None, Err(e)) => prop_assert_eq!(e.code(), Some("NOPERM")),
            (read, facts) => prop_assert!(false, "{read:?} out of {facts:?}"),
        }
        let there = match peers {
            Ok(Value::Array(items)) => items.len(),
            _ => 0,
        };
        prop_assert!(found.len() <= there);
    }

    #[test]
    fn fuzz_garbage_never_makes_a_master(all in proptest::collection::vec(parts(), 3)) {
        let list = ["a", "b", "c"].map(|s| Address::new(s, 26379).unwrap());
        let mut machine = Discovery::new(list.to_vec());
        let answers: Vec<Answer> = list
            .iter()
            .zip(all.clone())
            .map(|(from, [f, a, p])| {
                let reply = judged(f, a, p, &Secrets::default());
                Answer { from: from.clone(), id: None, reply, in_tilt: false }
            })
            .collect();
        machine.learn(&answers);
        if let Ok(master) = machine.decide(&answers) {
            let says = |[_, address, _]: &&[RedisResult<Value>; 3]| {
                let named = address.as_ref().ok().and_then(names);
                named == Some((master.at.host().to_owned(), master.at.port()))
            };
            prop_assert!(all.iter().filter(says).count() >= 2, "{master:?}");
        }
    }

    #[test]
    fn fuzz_an_id_is_an_id(value in any_value()) {
        match own_id(Ok(value.clone()), &Secrets::default()) {
            Ok(id) => prop_assert_eq!(id.map(String::from), plain(&value)),
            Err((kind, _)) => prop_assert_eq!(kind, Trouble::Strange),
        }
    }

    #[test]
    fn fuzz_an_event_concerns_whom_it_names(
        kind in prop_oneof![
            Just(PushKind::Message), Just(PushKind::PMessage), Just(PushKind::Subscribe),
            Just(PushKind::Other("x".into())), Just(PushKind::Disconnection),
        ],
        mut data in proptest::collection::vec(any_value(), 0..4),
        payload in proptest::option::of(any_bytes()),
        ours in any::<bool>(),
    ) {
        if let Some(mut bytes) = payload {
            if ours {
                bytes.extend(b" orders-a 10.0.0.1 6379 10.0.0.2 6379");
            }
            data.truncate(1);
            data.push(Value::BulkString(bytes));
        }
        let named = matches!(data.get(1), Some(Value::BulkString(bytes))
            if bytes.split(|b| *b == b' ').any(|word| word == b"orders-a"));
        let want = kind == PushKind::Disconnection || (kind == PushKind::Message && named);
        prop_assert_eq!(concerns(&PushInfo { kind, data }, "orders-a"), want);
    }

    #[test]
    fn fuzz_any_error_is_typed(words in "[A-Z]{0,12}( [ -~]{0,24})?") {
        let (_, detail) = trouble(&error(&words), &Secrets::default());
        prop_assert!(!detail.is_empty());
    }

    #[test]
    fn fuzz_addresses(text in prop_oneof![
        "[ -~]{0,24}", "\\PC{0,12}:[0-9]{0,6}", "\\[[0-9a-f:]{0,12}\\]:[0-9]{1,5}",
        any::<String>(),
    ]) {
        match Address::parse("sentinels", &text) {
            Ok(at) => {
                prop_assert!(at.port() > 0 && !at.host().is_empty());
                prop_assert_eq!(at.to_string().parse::<Address>().unwrap(), at);
            }
            Err(e) => prop_assert!(e.to_string().starts_with("`sentinels` is"), "{e}"),
        }
    }
}
