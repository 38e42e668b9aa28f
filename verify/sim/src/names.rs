//! Names of locks, keys and elections, and the short numbers of these names in a trace.

pub(crate) fn lock(n: usize) -> String {
    format!("lock-{n}")
}

pub(crate) fn calm(n: usize) -> String {
    format!("calm-{n}")
}

pub(crate) fn pool(n: usize) -> String {
    format!("pool-{n}")
}

pub(crate) fn calm_pool(n: usize) -> String {
    pool(50 + n)
}

/// Number of permits of each semaphore.
pub(crate) const PERMITS: u16 = 2;

pub(crate) fn slot(pool: usize, slot: u16) -> u16 {
    1_000 + 10 * pool as u16 + slot
}

pub(crate) fn order(n: usize) -> String {
    format!("order-{n}")
}

pub(crate) fn seat(n: usize) -> String {
    format!("seat-{n}")
}

/// Returns the number of a tick, a due time of a cron job. In the trace of a simulated run, ticks
/// have numbers like keys.
pub(crate) fn tick(unix_seconds: i64) -> u16 {
    400 + u16::try_from(unix_seconds % 600).unwrap_or_default()
}

/// Returns the slot of a cluster with so many slots in which a name is.
pub(crate) fn cluster_slot(number: u16, slots: u16) -> u16 {
    let is_plain = number < 100 || (200..300).contains(&number);
    if is_plain { number % 100 % slots } else { 0 }
}

pub(crate) fn is_key(number: u16) -> bool {
    (200..300).contains(&number) || (400..999).contains(&number)
}

pub(crate) fn number_of(key: &str) -> u16 {
    let name = key.rsplit(':').next().unwrap_or(key);
    let Some((kind, n)) = name.split_once('-') else { return 999 };
    let base = match kind {
        "lock" => 0,
        "calm" => 100,
        "order" => 200,
        "seat" => 300,
        "pool" => return slot(n.parse().unwrap_or(9), 0),
        _ => return 999,
    };
    base + n.parse::<u16>().unwrap_or(99)
}
