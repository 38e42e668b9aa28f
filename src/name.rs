//! Names and the keys they become.
//!
//! A lock's main key is the prefix followed by the name exactly as given, so that other clients on
//! the same key exclude us and we them. Side keys carry the main key as their hash tag.

use std::sync::Arc;

use crate::error::ConfigError;

/// Longest name or prefix in bytes.
pub const NAME_MAX: usize = 512;

/// Where a server keeps the mark of its data history (quarantine 2).
pub(crate) const MARKER: &str = "palisade:generation";
/// What is written there so that replicas have something to confirm (durability 2).
pub(crate) const BARRIER: &str = "palisade:barrier";

/// Names that were kept for their holders soon after a planned handover (quarantine 11).
pub(crate) const SETTLED: &str = "palisade:settled";

/// Checks a user-supplied name: not empty, at most [`NAME_MAX`] bytes, no control characters.
///
/// # Errors
/// [`ConfigError`] naming the field, the value and the rule.
pub fn check_name(field: &'static str, name: &str) -> Result<(), ConfigError> {
    if name.is_empty() {
        return Err(ConfigError::new(field, "\"\"", "must not be empty"));
    }
    check_text(field, name)
}

/// As [`check_name`], but the empty text is allowed (a prefix, a label).
pub(crate) fn check_text(field: &'static str, text: &str) -> Result<(), ConfigError> {
    if text.len() > NAME_MAX {
        let shown: String = text.chars().take(16).collect();
        let value = format!("{shown:?}… ({} bytes)", text.len());
        return Err(ConfigError::new(field, value, format!("at most {NAME_MAX} bytes")));
    }
    if text.chars().any(char::is_control) {
        return Err(ConfigError::new(field, format!("{text:?}"), "no control characters"));
    }
    Ok(())
}

/// Refuses a lock's main key that is a side key of another lock, or what nodes keep for themselves:
/// others would write there.
pub(crate) fn check_key(field: &'static str, key: &str) -> Result<(), ConfigError> {
    if [MARKER, BARRIER, SETTLED].contains(&key) {
        let rule = "is a key that servers keep for all locks together; use another name or prefix";
        return Err(ConfigError::new(field, format!("{key:?}"), rule));
    }
    for what in ["fence", "queue", "meta"] {
        let Some(base) = key.strip_suffix(what).and_then(|base| base.strip_suffix(':')) else {
            continue;
        };
        let untagged = base.strip_prefix('{').and_then(|b| b.strip_suffix('}'));
        for other in [Some(base), untagged].into_iter().flatten().filter(|other| !other.is_empty())
        {
            let keys = LockKeys::new(other);
            if [keys.fence(), keys.queue(), keys.meta()].contains(&key) {
                let rule =
                    format!("is where the lock {other:?} keeps its {what}; use another name");
                return Err(ConfigError::new(field, format!("{key:?}"), rule));
            }
        }
    }
    Ok(())
}

/// The keys of one lock or election on a node. Cheap to clone.
///
/// One allocation holds all four, end to end: they are made for every lock that is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKeys(Arc<Parts>);

#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Parts {
    text: Box<str>,
    /// Where the lock, the fence and the queue key end.
    ends: [usize; 3],
}

impl LockKeys {
    /// Derives all keys from the main key.
    pub fn new(lock: &str) -> Self {
        Self::prefixed("", lock)
    }

    /// Derives all keys from the main key `prefix` + `name`.
    pub(crate) fn prefixed(prefix: &str, name: &str) -> Self {
        let len = prefix.len() + name.len();
        let mut text = String::with_capacity(4 * len + 24);
        text.push_str(prefix);
        text.push_str(name);
        let tagged = has_hash_tag(&text);
        let mut ends = [len; 3];
        for (i, what) in ["fence", "queue", "meta"].into_iter().enumerate() {
            // Both forms hash to the slot of the main key.
            text.push_str(if tagged { "" } else { "{" });
            text.push_str(prefix);
            text.push_str(name);
            text.push_str(if tagged { ":" } else { "}:" });
            text.push_str(what);
            if i < 2 {
                ends[i + 1] = text.len();
            }
        }
        Self(Arc::new(Parts { text: text.into_boxed_str(), ends }))
    }

    /// The main key: string, value = owner token.
    pub fn lock(&self) -> &str {
        &self.0.text[..self.0.ends[0]]
    }

    /// `{k}:fence`: the largest fencing token seen here.
    pub fn fence(&self) -> &str {
        &self.0.text[self.0.ends[0]..self.0.ends[1]]
    }

    /// `{k}:queue`: present while somebody waits, so that a release knows whether to wake anyone.
    pub fn queue(&self) -> &str {
        &self.0.text[self.0.ends[1]..self.0.ends[2]]
    }

    /// `{k}:meta`: the holder's words about itself (an election's proclaimed value).
    pub fn meta(&self) -> &str {
        &self.0.text[self.0.ends[2]..]
    }
}

/// Whether a key has a non-empty `{…}`, by which alone a cluster would place it.
fn has_hash_tag(key: &str) -> bool {
    key.find('{').and_then(|open| key[open + 1..].find('}')).is_some_and(|len| len > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_keys_share_the_slot() {
        assert_eq!(LockKeys::new("invoice:42").fence(), "{invoice:42}:fence");
        assert_eq!(LockKeys::new("{acct}:7").queue(), "{acct}:7:queue");
        assert_eq!(LockKeys::new("a{}b").meta(), "{a{}b}:meta");
        let keys = LockKeys::prefixed("app:", "x");
        assert_eq!(keys.lock(), "app:x");
        assert_eq!(keys.fence(), "{app:x}:fence");
        assert_eq!(keys.queue(), "{app:x}:queue");
        assert_eq!(keys.meta(), "{app:x}:meta");
    }

    #[test]
    fn bad_names_are_told_with_field_value_and_rule() {
        for (name, rule) in
            [("", "must not be empty"), ("a\nb", "no control characters"), ("\u{7f}", "control")]
        {
            let text = check_name("name", name).unwrap_err().to_string();
            assert!(text.contains("name") && text.contains(rule), "{text}");
        }
        let long = "x".repeat(NAME_MAX + 1);
        assert!(check_name("name", &long).unwrap_err().to_string().contains("513 bytes"));
        assert!(check_name("name", &long[1..]).is_ok());
    }
}
