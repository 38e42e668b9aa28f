//! Names and the keys they become.
//!
//! A lock's main key is the prefix followed by the name exactly as given, so that other clients on
//! the same key exclude us and we them. Side keys carry the main key as their hash tag.

use std::sync::Arc;

use crate::error::ConfigError;

/// Longest name or prefix in bytes.
pub const NAME_MAX: usize = 512;

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

/// Refuses a lock's main key that is a side key of another lock: the other's holder would change it.
pub(crate) fn check_key(field: &'static str, key: &str) -> Result<(), ConfigError> {
    for what in ["fence", "queue", "meta"] {
        let Some(base) = key.strip_suffix(what).and_then(|base| base.strip_suffix(':')) else {
            continue;
        };
        let bare = base.strip_prefix('{').and_then(|base| base.strip_suffix('}'));
        for other in [Some(base), bare].into_iter().flatten().filter(|other| !other.is_empty()) {
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKeys(Arc<Parts>);

#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Parts {
    lock: Box<str>,
    fence: Box<str>,
    queue: Box<str>,
    meta: Box<str>,
}

impl LockKeys {
    /// Derives all keys from the main key.
    pub fn new(lock: &str) -> Self {
        let side = |what: &str| side_key(lock, what).into_boxed_str();
        Self(Arc::new(Parts {
            lock: lock.into(),
            fence: side("fence"),
            queue: side("queue"),
            meta: side("meta"),
        }))
    }

    /// The main key: string, value = owner token.
    pub fn lock(&self) -> &str {
        &self.0.lock
    }

    /// `{k}:fence`: the largest fencing token seen here.
    pub fn fence(&self) -> &str {
        &self.0.fence
    }

    /// `{k}:queue`: present while somebody waits, so that a release knows whether to wake anyone.
    pub fn queue(&self) -> &str {
        &self.0.queue
    }

    /// `{k}:meta`: the holder's words about itself (an election's proclaimed value).
    pub fn meta(&self) -> &str {
        &self.0.meta
    }
}

/// `{k}:what`, or `k:what` if `k` already has a non-empty hash tag: both hash to the slot of `k`.
fn side_key(key: &str, what: &str) -> String {
    let tagged = key
        .find('{')
        .and_then(|open| key[open + 1..].find('}').map(|len| len > 0))
        .unwrap_or(false);
    if tagged { format!("{key}:{what}") } else { format!("{{{key}}}:{what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_keys_share_the_slot() {
        assert_eq!(LockKeys::new("invoice:42").fence(), "{invoice:42}:fence");
        assert_eq!(LockKeys::new("{acct}:7").queue(), "{acct}:7:queue");
        assert_eq!(LockKeys::new("a{}b").meta(), "{a{}b}:meta");
        assert_eq!(LockKeys::new("invoice:42").lock(), "invoice:42");
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
