//! Names of locks, keys and elections, and their short numbers in a trace.

/// A lock under contention.
pub(crate) fn lock(n: usize) -> String {
    format!("lock-{n}")
}

/// A lock used when all is calm again.
pub(crate) fn calm(n: usize) -> String {
    format!("calm-{n}")
}

/// An idempotency key.
pub(crate) fn order(n: usize) -> String {
    format!("order-{n}")
}

/// An election.
pub(crate) fn seat(n: usize) -> String {
    format!("seat-{n}")
}

/// The number of a tick, as of a key.
pub(crate) fn tick(unix_seconds: i64) -> u16 {
    400 + u16::try_from(unix_seconds % 600).unwrap_or_default()
}

/// Whether this is the number of an idempotency key or a tick.
pub(crate) fn is_key(number: u16) -> bool {
    (200..300).contains(&number) || (400..999).contains(&number)
}

/// The number of a key, whatever its prefix.
pub(crate) fn number_of(key: &str) -> u16 {
    let name = key.rsplit(':').next().unwrap_or(key);
    let Some((kind, n)) = name.split_once('-') else { return 999 };
    let base = match kind {
        "lock" => 0,
        "calm" => 100,
        "order" => 200,
        "seat" => 300,
        _ => return 999,
    };
    base + n.parse::<u16>().unwrap_or(99)
}
