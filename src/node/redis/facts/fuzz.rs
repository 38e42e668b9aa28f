//! Property tests of the facts that a server reports: no answer to INFO and CONFIG causes a panic,
//! and a malformed answer gives an error and no connection.

use proptest::prelude::*;

use super::*;
use super::{read as read_all, text as read_text};
use crate::fuzzing::{any_bytes, any_value, config, corpus, mutated, text as text_value, value};

const REPLID: &str = "0123456789abcdef0123456789abcdef01234567";

fn read(parts: [&str; 3], config: Option<&Value>) -> Result<ServerFacts, NodeError> {
    read_all(parts, config, (false, &Secrets::default()))
}

fn text(answer: Result<Value, RedisError>) -> Result<String, NodeError> {
    read_text(answer, &Secrets::default())
}

fn server() -> String {
    "# Server\r\nredis_version:7.2.4\r\nredis_mode:standalone\r\nrun_id:abcdef\r\n".to_owned()
}

fn replication() -> String {
    format!(
        "# Replication\r\nrole:master\r\nmaster_replid:{REPLID}\r\nmin_slaves_good_slaves:2\r\n"
    )
}

fn memory() -> String {
    "# Memory\r\nmaxmemory:1048576\r\nmaxmemory_policy:allkeys-lru\r\n".to_owned()
}

fn settings() -> Value {
    let all = ["min-replicas-to-write", "1", "min-replicas-max-lag", "3"];
    Value::Array(all.into_iter().map(text_value).collect())
}

/// Generates the text `valid` with some bytes damaged, or any text.
fn hurt(valid: &str) -> impl Strategy<Value = Value> + use<> {
    prop_oneof![
        3 => Just(text_value(valid)),
        4 => mutated(Just(text_value(valid))),
        1 => any_bytes().prop_map(Value::BulkString),
        1 => any_value(),
    ]
}

fn has_line(text: &str, line: &str) -> bool {
    text.split('\n').any(|l| l.trim_end_matches('\r') == line)
}

#[test]
fn fuzz_corpus_opens_no_session() {
    for (line, json) in corpus(include_str!("../../../../tests/corpus/info.txt")) {
        let part = |i: usize| json[i].as_str().unwrap();
        let settings = json.get(2).filter(|c| !c.is_null()).map(value);
        let memory = json.get(3).and_then(|m| m.as_str()).unwrap_or_default();
        let got = read([part(0), part(1), memory], settings.as_ref());
        assert!(got.is_err(), "info.txt:{line}: {got:?}");
    }
}

#[test]
fn what_is_valid_is_read() {
    let facts = read([&server(), &replication(), &memory()], Some(&settings())).unwrap();
    assert_eq!((&*facts.run_id, &*facts.replid, facts.version), ("abcdef", REPLID, (7, 2, 4)));
    assert_eq!(facts.good_replicas, Some(2));
    assert_eq!((facts.min_replicas, facts.min_replicas_max_lag), (Some(1), Some(3)));
    let empty = Value::Array(Vec::new());
    for closed in [None, Some(&empty)] {
        let facts = read([&server(), &replication(), ""], closed).unwrap();
        assert_eq!((facts.min_replicas, facts.min_replicas_max_lag), (None, None));
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_a_session_is_with_who_it_says(
        (server, replication, memory) in
            (hurt(&server()), hurt(&replication()), hurt(&memory())),
        settings in proptest::option::of(prop_oneof![mutated(Just(settings())), any_value()]),
    ) {
        let texts = (text(Ok(server)), text(Ok(replication)), text(Ok(memory)));
        let (Ok(server), Ok(replication), Ok(memory)) = texts else {
            return Ok(());
        };
        match read([&server, &replication, &memory], settings.as_ref()) {
            Ok(facts) => {
                let (id, history) =
                    (format!("run_id:{}", facts.run_id), format!("master_replid:{}", facts.replid));
                prop_assert!(has_line(&server, &id) && has_line(&replication, &history));
                prop_assert!(facts.replid.len() == 40 && !facts.run_id.is_empty());
                prop_assert!(has_line(&replication, "role:master") && facts.version >= OLDEST);
                let reported = |name: &str| {
                    let all = settings.as_ref().and_then(fields).unwrap_or_default();
                    all.get(name).map(|n| n.parse::<u32>().unwrap())
                };
                prop_assert_eq!(facts.min_replicas, reported("min-replicas-to-write"));
                prop_assert_eq!(facts.min_replicas_max_lag, reported("min-replicas-max-lag"));
                if let Some(Eviction { max_memory, policy }) = facts.eviction {
                    let policy = format!("maxmemory_policy:{policy}");
                    prop_assert!(max_memory > 0 && has_line(&memory, &policy));
                }
            }
            Err(e) => {
                use NodeFault as F;
                prop_assert!(matches!(e.fault(), F::Protocol | F::NotMaster | F::Unsupported));
                prop_assert!(!e.is_ambiguous() && e.detail().len() < 400, "{e}");
            }
        }
    }

    #[test]
    fn fuzz_an_answer_that_is_no_text_is_a_fault(value in any_value()) {
        if let Err(e) = text(Ok(value)) {
            prop_assert_eq!(e.fault(), NodeFault::Protocol);
        }
    }
}
