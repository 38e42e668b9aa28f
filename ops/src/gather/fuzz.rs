//! Tests with arbitrary answers of servers: each answer is parsed, or the parser returns an error.

use proptest::prelude::*;

use super::{conn, server};
use crate::fuzzing::{any_value, config, mutated, text};
use redis::Value;

fn role() -> impl Strategy<Value = Value> {
    let replica = || Value::Array(vec![text("10.0.0.2"), text("6379"), text("1000")]);
    let master = Value::Array(vec![
        text("master"),
        Value::Int(1_000),
        Value::Array(vec![replica(), replica()]),
    ]);
    let link = text("connected");
    let slave = [text("slave"), text("10.0.0.1"), Value::Int(6379), link, Value::Int(1_000)];
    prop_oneof![mutated(Just(master)), mutated(Just(Value::Array(slave.to_vec()))), any_value(),]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_answers_are_understood_or_not(value in any_value(), role in role()) {
        let _ = conn::text(&value);
        let _ = conn::info(&value);
        if let Some(all) = conn::fields(&value) {
            prop_assert!(matches!(value, Value::Array(_) | Value::Map(_)), "{all:?}");
        }
        let _ = server::read_role(&role);
        let _ = server::read_marker(&value, 1);
    }
}
