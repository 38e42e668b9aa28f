//! Checks of names, and the keys on the nodes. A lock's other keys contain the main key as hash
//! tag, so that a cluster keeps all in one slot. Keys of elections, records and semaphores have a
//! label after the prefix, which no lock's name or prefix may contain: two resources never share a
//! key.

mod slots;

use std::sync::Arc;

pub(crate) use self::slots::SLOTS;
pub use self::slots::{slot_key, slot_of};
use crate::error::ConfigError;
use crate::error::Resource;
use crate::safe_text::Quoted;

/// In bytes, of a name or a prefix.
pub(crate) const NAME_MAX: usize = 512;

/// Key of the marker, which says whose data a server has and since when they are complete
/// (quarantine 2).
pub const MARKER: &str = "palisade:generation";
/// Key of the note: number and time of the last write that counts (quarantine 2, 18).
pub const NOTE: &str = "palisade:note";
/// Written before a wait for replicas, so that they have a write to confirm (durability 2).
pub(crate) const BARRIER: &str = "palisade:barrier";

/// Shows whether a slot of a cluster was away (cluster 7).
pub const STAYS: &str = "palisade:stays";
/// Never there.
pub(crate) const NONE: &str = "palisade:none";
// A short string in a longer key is `raw` also where it came by `RESTORE` (Redis 8.2).
const _: () = assert!(STAYS.len() + ":{999999}".len() <= 24);

const ELECTION: &str = "election:";
const RECORD: &str = "idem:";
const PERMITS: &str = "permits:";

/// Neither the name of a lock nor a prefix may contain one. Each ends with a colon.
const LABELS: [&str; 3] = [ELECTION, RECORD, PERMITS];

/// Namespace of the decisions of operators about losses of data (idempotency 20).
pub const DECISIONS: &str = "palisade-decisions";

const REQUEST: &str = "ask";
const CANDIDATES: &str = "candidates";

/// Key of the list of locks that a server keeps closed for their holders after a planned handover
/// (quarantine 11).
pub const SETTLED: &str = "palisade:settled";

/// Checks a user-supplied name. It must not be empty or blank, must have at most 512 bytes, and
/// must not contain control characters.
///
/// # Errors
/// [`ConfigError`] with the field, its value and the broken rule.
pub fn check_name(field: &'static str, name: &str) -> Result<(), ConfigError> {
    if name.chars().all(is_blank) {
        return Err(ConfigError::new(field, Quoted(name).to_string(), "must not be empty"));
    }
    check_text(field, name)
}

/// Also characters of no width.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}')
}

pub(crate) fn check_text(field: &'static str, text: &str) -> Result<(), ConfigError> {
    if text.len() > NAME_MAX {
        let shown: String = text.chars().take(16).collect();
        let value = format!("{}… ({} bytes)", Quoted(&shown), text.len());
        return Err(ConfigError::new(field, value, format!("at most {NAME_MAX} bytes")));
    }
    if text.chars().any(char::is_control) {
        return Err(ConfigError::new(field, Quoted(text).to_string(), "no control characters"));
    }
    Ok(())
}

/// Checks the prefix of the names of a `Redlock` handle. It must not end with a letter or digit,
/// and must not contain the label (such as `election:`) of elections, idempotency keys or
/// semaphores. Otherwise, the key of a lock with this prefix could be the key of an election, an
/// idempotency key or a semaphore of another handle, or the labels in the keys of this handle could
/// not be recognised (locks 14).
pub fn check_prefix(prefix: &str) -> Result<(), ConfigError> {
    check_text("prefix", prefix)?;
    if prefix.ends_with(char::is_alphanumeric) {
        let rule = format!("must end with a separator, as {}", Quoted(&format!("{prefix}:")));
        return Err(ConfigError::new("prefix", Quoted(prefix).to_string(), rule));
    }
    match kind_in(prefix) {
        Some(kind) => {
            let rule = format!("`{kind}` is how keys of another kind begin; use another text");
            Err(ConfigError::new("prefix", Quoted(prefix).to_string(), rule))
        }
        None => Ok(()),
    }
}

/// Parses the id of a deployment: 16 hexadecimal digits, not all of them zero.
///
/// # Errors
/// [`ConfigError`] with the text and the rule.
pub fn deployment_id(text: &str) -> Result<u64, ConfigError> {
    let is_hex = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let id = if is_hex { u64::from_str_radix(text, 16).unwrap_or(0) } else { 0 };
    if id == 0 {
        let rule = "16 hexadecimal digits, not all zero, as `palisade settings` prints them";
        return Err(ConfigError::new("deployment", Quoted(text).to_string(), rule));
    }
    Ok(id)
}

/// Checks the namespace of idempotency keys as [`check_name`] does. It must have no colon, because
/// namespace "a:b" with key "c" and namespace "a" with key "b:c" would have the same Redis key.
/// [`DECISIONS`] is reserved.
pub fn check_namespace(namespace: &str) -> Result<(), ConfigError> {
    check_name("namespace", namespace)?;
    if namespace.contains(':') {
        return Err(ConfigError::new("namespace", Quoted(namespace).to_string(), "no colon"));
    }
    if namespace == DECISIONS {
        let rule = "another text: this one is reserved for decisions of operators";
        return Err(ConfigError::new("namespace", Quoted(namespace).to_string(), rule));
    }
    Ok(())
}

pub(crate) fn check_lock(name: &str, keys: &LockKeys) -> Result<(), ConfigError> {
    check_name("name", name)?;
    let first = LABELS.into_iter().find(|kind| name.starts_with(kind));
    if let Some(kind) = first.or_else(|| kind_in(keys.lock())) {
        let what = match kind {
            ELECTION => "elections",
            RECORD => "idempotency keys",
            _ => "the permits of semaphores",
        };
        let rule = format!("`{kind}` is where {what} are kept; use another text");
        return Err(ConfigError::new("name", Quoted(name).to_string(), rule));
    }
    check_key("name", keys.lock())
}

pub(crate) fn check_election(name: &str, keys: &LockKeys) -> Result<(), ConfigError> {
    check_name("name", name)?;
    check_key("name", keys.lock())
}

pub(crate) fn check_semaphore(name: &str, keys: &LockKeys) -> Result<(), ConfigError> {
    check_name("name", name)?;
    check_key("name", keys.lock())
}

/// Returns the lock, election or semaphore whose main key in a handle with this prefix is `key`;
/// `None` if no valid name has this key. If `prefix` is empty, the function also finds the
/// elections and semaphores of handles with a prefix. For these, the name in the result is the
/// whole key.
pub fn of_key(prefix: &str, key: &str) -> Option<Resource> {
    let (name, keys) = (key.strip_prefix(prefix)?, LockKeys::new(key));
    if let Some(name) = name.strip_prefix(ELECTION) {
        return check_election(name, &keys).ok().map(|()| Resource::Election(name.into()));
    }
    if prefix.is_empty() && kind_in(key) == Some(ELECTION) {
        return check_election(key, &keys).ok().map(|()| Resource::Election(key.into()));
    }
    let name = match name.strip_prefix(PERMITS) {
        Some(name) => Some(name),
        None => Some(key).filter(|_| prefix.is_empty() && kind_in(key) == Some(PERMITS)),
    };
    if let Some(name) = name {
        return check_semaphore(name, &keys).ok().map(|()| Resource::Semaphore(name.into()));
    }
    let name = key.strip_prefix(prefix)?;
    check_lock(name, &keys).ok().map(|()| Resource::Lock(name.into()))
}

/// At the beginning, or after a character that is neither letter nor digit.
fn kind_in(text: &str) -> Option<&'static str> {
    let begins = |kind: &str, head: &str| {
        head.strip_suffix(kind).is_some_and(|before| !before.ends_with(char::is_alphanumeric))
    };
    // A label can end only at a colon, and most names have few.
    let heads = || text.match_indices(':').map(|(at, colon)| &text[..at + colon.len()]);
    LABELS.into_iter().find(|kind| heads().any(|head| begins(kind, head)))
}

/// Returns the key of an idempotency record. The namespace must have no colon.
pub fn record_key(prefix: &str, namespace: &str, key: &str) -> Arc<str> {
    [prefix, RECORD, namespace, ":", key].concat().into()
}

/// Returns the key that a trial uses in the place of `key`. Its hash tag keeps the other keys of a
/// lock under the same beginning.
pub fn trial_key(trial: u64, key: &str) -> String {
    format!("palisade:probe:{{{trial:016x}}}:{key}")
}

/// Returns the namespace and the name of the idempotency record that has this key; `None` if the
/// key is not that of a record with this prefix.
pub fn of_record<'a>(prefix: &str, key: &'a str) -> Option<(&'a str, &'a str)> {
    key.strip_prefix(prefix)?.strip_prefix(RECORD)?.split_once(':')
}

/// Refuses a side key of another lock, a key with the same side keys, or one that nodes use for all
/// locks together.
fn check_key(field: &'static str, key: &str) -> Result<(), ConfigError> {
    // In a cluster each slot has its own.
    let whole = key.split_once(":{").map_or(key, |(whole, _)| whole);
    if [MARKER, NOTE, BARRIER, SETTLED, STAYS, NONE].contains(&whole) {
        let rule = "is a key that servers keep for all locks together; use another name or prefix";
        return Err(ConfigError::new(field, Quoted(key).to_string(), rule));
    }
    let inner = key.strip_prefix('{').and_then(|k| k.strip_suffix('}'));
    if inner.is_some_and(|inner| has_hash_tag(key) && !has_hash_tag(inner)) {
        let rule = "is a hash tag and nothing else; leave out the braces, the slot is the same";
        return Err(ConfigError::new(field, Quoted(key).to_string(), rule));
    }
    for what in ["fence", "queue", "meta", REQUEST, CANDIDATES] {
        let Some(base) = key.strip_suffix(what).and_then(|base| base.strip_suffix(':')) else {
            continue;
        };
        let untagged = base.strip_prefix('{').and_then(|b| b.strip_suffix('}'));
        for other in [Some(base), untagged].into_iter().flatten().filter(|other| !other.is_empty())
        {
            let keys = LockKeys::new(other);
            let (request, list) = (keys.request(), keys.candidates());
            if [keys.fence(), keys.queue(), keys.meta(), request.lock(), &list].contains(&key) {
                let rule = format!(
                    "is where the lock {} keeps its {what}; use another name",
                    Quoted(other)
                );
                return Err(ConfigError::new(field, Quoted(key).to_string(), rule));
            }
        }
    }
    Ok(())
}

/// The keys of one lock or election on a node. Cheap to clone.
///
/// One string holds all four keys, one after the other. So the keys need only one allocation,
/// although they are made for every lock that is acquired.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKeys(Arc<Parts>);

#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Parts {
    text: Box<str>,
    /// End offsets in `text` of the main key, the `:fence` key and the `:queue` key.
    ends: [usize; 3],
    /// If several locks are acquired together.
    more: Box<[LockKeys]>,
}

impl LockKeys {
    /// Derives all Redis keys of a lock from its main key, the key that holds the owner.
    pub fn new(lock: &str) -> Self {
        Self::prefixed("", lock)
    }

    pub(crate) fn of_election(prefix: &str, name: &str) -> Self {
        Self::new(&format!("{prefix}{ELECTION}{name}"))
    }

    pub(crate) fn of_semaphore(prefix: &str, name: &str) -> Self {
        Self::new(&format!("{prefix}{PERMITS}{name}"))
    }

    pub(crate) fn request(&self) -> Self {
        Self::new(&self.beside(REQUEST))
    }

    pub(crate) fn candidates(&self) -> Arc<str> {
        self.beside(CANDIDATES).into()
    }

    fn beside(&self, what: &str) -> String {
        let lock = self.lock();
        if has_hash_tag(lock) { format!("{lock}:{what}") } else { format!("{{{lock}}}:{what}") }
    }

    pub(crate) fn prefixed(prefix: &str, name: &str) -> Self {
        let len = prefix.len() + name.len();
        let mut text = String::with_capacity(4 * len + 24);
        text.push_str(prefix);
        text.push_str(name);
        let tagged = has_hash_tag(&text);
        let mut ends = [len; 3];
        for (i, what) in ["fence", "queue", "meta"].into_iter().enumerate() {
            // With and without added braces, a key is in the slot of the main key.
            text.push_str(if tagged { "" } else { "{" });
            text.push_str(prefix);
            text.push_str(name);
            text.push_str(if tagged { ":" } else { "}:" });
            text.push_str(what);
            if i < 2 {
                ends[i + 1] = text.len();
            }
        }
        Self(Arc::new(Parts { text: text.into_boxed_str(), ends, more: Box::default() }))
    }

    /// Returns the keys of several locks that are acquired together (multi_lock 1). Where only one
    /// lock can be named, for example in a log, the keys of the first lock are used.
    ///
    /// # Panics
    /// If `names` is empty.
    pub fn many(mut names: Vec<Self>) -> Self {
        let Parts { text, ends, .. } = &*names.remove(0).0;
        Self(Arc::new(Parts { text: text.clone(), ends: *ends, more: names.into() }))
    }

    /// Returns true if these are the keys of several locks.
    pub fn is_many(&self) -> bool {
        !self.0.more.is_empty()
    }

    /// Returns the keys of each lock.
    pub fn all(&self) -> impl Iterator<Item = &Self> + Clone {
        std::iter::once(self).chain(self.0.more.iter())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.all().map(|keys| keys.0.text.len()).sum()
    }

    /// Returns the main key. Its value is the owner token, as a string. The main key of a semaphore
    /// contains all slots of the semaphore instead.
    pub fn lock(&self) -> &str {
        &self.0.text[..self.0.ends[0]]
    }

    /// Returns the key `{k}:fence`, whose value is the largest fencing token that the node has seen
    /// for the lock.
    pub fn fence(&self) -> &str {
        &self.0.text[self.0.ends[0]..self.0.ends[1]]
    }

    /// Returns the key `{k}:queue`. It exists while clients wait for the lock, so that a release
    /// can see if there is a client to notify.
    pub fn queue(&self) -> &str {
        &self.0.text[self.0.ends[1]..self.0.ends[2]]
    }

    /// Returns the key `{k}:meta`, whose value is the holder's metadata, for example an election's
    /// published value.
    pub fn meta(&self) -> &str {
        &self.0.text[self.0.ends[2]..]
    }
}

/// A non-empty `{…}`: a cluster computes the slot from it alone.
fn has_hash_tag(key: &str) -> bool {
    key.find('{').and_then(|open| key[open + 1..].find('}')).is_some_and(|len| len > 0)
}

#[cfg(test)]
mod tests;
