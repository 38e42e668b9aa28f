//! Tools of the fuzz tests of the parsers. `PROPTEST_CASES` sets the number of cases. Failed cases
//! are not stored in files; add one to `tests/corpus` by hand.

use proptest::prelude::*;
use proptest::sample::Index;
use redis::{RedisError, RedisResult, Value};

/// `SplitMix64`.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    pub(crate) fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }
}

pub(crate) fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

/// For the parser that reads every byte that a server sends.
pub(crate) fn many() -> ProptestConfig {
    let usual = config();
    ProptestConfig { cases: usual.cases.saturating_mul(10), ..usual }
}

/// Each line is JSON, or a comment that begins with `#`. With the line number.
pub(crate) fn corpus(text: &str) -> impl Iterator<Item = (usize, serde_json::Value)> {
    let lines = text.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
    lines
        .map(|(n, l)| (n + 1, serde_json::from_str(l).unwrap_or_else(|e| panic!("{}: {e}", n + 1))))
}

pub(crate) fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::Nil,
        Json::Bool(b) => Value::Boolean(*b),
        Json::Number(n) => n.as_i64().map_or(Value::Double(n.as_f64().unwrap()), Value::Int),
        Json::String(s) => text(s),
        Json::Array(items) => Value::Array(items.iter().map(value).collect()),
        Json::Object(pairs) => Value::Map(pairs.iter().map(|(k, v)| (text(k), value(v))).collect()),
    }
}

/// `{"error": "CODE text"}` is a server's error.
pub(crate) fn answer(json: &serde_json::Value) -> RedisResult<Value> {
    match json.get("error").and_then(serde_json::Value::as_str) {
        Some(words) => Err(error(words)),
        None => Ok(value(json)),
    }
}

/// `words` are the code and the text.
pub(crate) fn error(words: &str) -> RedisError {
    let (code, detail) = words.split_once(' ').unwrap_or((words, ""));
    redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))
}

pub(crate) fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// Often near the limits of the parsed types.
pub(crate) fn any_number() -> impl Strategy<Value = i64> {
    const EDGES: &[i64] = &[
        -9,
        -8,
        -7,
        -6,
        -5,
        -4,
        -3,
        -2,
        -1,
        0,
        1,
        2,
        6379,
        65_535,
        65_536,
        71_915,
        0x7FFF_FFFF,
        0xFFFF_FFFF,
        0x1_0000_0000,
        (1 << 53) - 1,
        1 << 53,
        i64::MAX,
        i64::MIN,
    ];
    prop_oneof![proptest::sample::select(EDGES), any::<i64>(), 0_i64..100_000]
}

/// Often words that the parsers expect.
pub(crate) fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    const WORDS: &[&str] = &[
        "",
        " ",
        "0",
        "-1",
        "+1",
        "1e3",
        "10.0.0.1",
        "::1",
        "a\nb",
        "6379",
        "master",
        "s_down,",
        "ip",
        "port",
        "config-epoch",
        "\u{0}",
        "18446744073709551616",
        "NaN",
        "palisade",
    ];
    prop_oneof![
        proptest::sample::select(WORDS).prop_map(|w| w.as_bytes().to_vec()),
        any_number().prop_map(|n| n.to_string().into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..24),
        "[ -~]{0,24}".prop_map(String::into_bytes),
    ]
}

pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => any_bytes().prop_map(Value::BulkString),
        2 => any_number().prop_map(Value::Int),
        1 => Just(Value::Nil),
        1 => Just(Value::Okay),
        1 => any::<bool>().prop_map(Value::Boolean),
        1 => any::<f64>().prop_map(Value::Double),
        1 => "[ -~]{0,12}".prop_map(Value::SimpleString),
    ];
    leaf.prop_recursive(3, 24, 8, |inner| {
        let many = || proptest::collection::vec(inner.clone(), 0..8);
        prop_oneof![
            3 => many().prop_map(Value::Array),
            1 => many().prop_map(Value::Set),
            1 => proptest::collection::vec((inner.clone(), inner.clone()), 0..4)
                .prop_map(Value::Map),
        ]
    })
}

#[derive(Clone, Debug)]
enum Harm {
    Replace(Value),
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Value),
    Twice(Index),
    Swap(Index, Index),
    Lose(Index),
}

pub(crate) fn mutated(valid: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    let at = any::<Index>;
    let harm = prop_oneof![
        any_value().prop_map(Harm::Replace),
        (at(), 0_u8..8).prop_map(|(i, bit)| Harm::Flip(i, bit)),
        at().prop_map(Harm::Cut),
        (at(), any_value()).prop_map(|(i, v)| Harm::Insert(i, v)),
        at().prop_map(Harm::Twice),
        (at(), at()).prop_map(|(i, j)| Harm::Swap(i, j)),
        at().prop_map(Harm::Lose),
    ];
    (valid, proptest::collection::vec((at(), harm), 1..4)).prop_map(|(mut value, harms)| {
        for (place, harm) in harms {
            let mut left = place.index(nodes(&value));
            hurt(&mut value, &mut left, &harm);
        }
        value
    })
}

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        _ => 0,
    }
}

/// The value at index `left`, in depth-first order. True if it was reached and mutated.
fn hurt(value: &mut Value, left: &mut usize, harm: &Harm) -> bool {
    if *left == 0 {
        harm_here(value, harm);
        return true;
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| hurt(item, left, harm)),
        _ => false,
    }
}

fn harm_here(value: &mut Value, harm: &Harm) {
    match (value, harm) {
        (value, Harm::Replace(with)) => *value = with.clone(),
        (Value::BulkString(bytes), Harm::Flip(i, bit)) if !bytes.is_empty() => {
            let at = i.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        (Value::BulkString(bytes), harm) => rearrange(bytes, harm, &b'0'),
        (Value::Array(items), Harm::Insert(i, v)) => {
            items.insert(i.index(items.len() + 1), v.clone());
        }
        (Value::Array(items), harm) => rearrange(items, harm, &Value::Nil),
        (Value::Int(n), Harm::Flip(i, _)) => *n ^= 1 << i.index(64),
        (Value::Int(n), _) => *n = n.wrapping_neg(),
        _ => {}
    }
}

fn rearrange<T: Clone>(items: &mut Vec<T>, harm: &Harm, new: &T) {
    let len = items.len();
    if len == 0 {
        return items.push(new.clone());
    }
    match harm {
        Harm::Cut(i) => items.truncate(i.index(len)),
        Harm::Twice(i) => items.insert(i.index(len), items[i.index(len)].clone()),
        Harm::Insert(i, _) => items.insert(i.index(len + 1), new.clone()),
        Harm::Swap(i, j) => items.swap(i.index(len), j.index(len)),
        Harm::Lose(i) | Harm::Flip(i, _) => drop(items.remove(i.index(len))),
        Harm::Replace(_) => {}
    }
}
