//! The name of a key with its namespace, for reports and errors.

use std::fmt;
use std::sync::Arc;

const SHOWN: usize = 80;

/// An idempotency key with its namespace. `Display` prints for example `"payments:alice:order-7"`:
/// always one line, with at most 80 characters of the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyName {
    namespace: Arc<str>,
    key: Arc<str>,
}

impl KeyName {
    pub(crate) fn new(namespace: &Arc<str>, key: &Arc<str>) -> Self {
        Self { namespace: Arc::clone(namespace), key: Arc::clone(key) }
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the key as the caller gave it.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.key.chars().take(SHOWN).collect();
        let rest = if shown.len() < self.key.len() { "…" } else { "" };
        write!(f, "\"{}:{}{rest}\"", self.namespace, shown.escape_debug())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_on_one_line() {
        let show = |key: &str| KeyName::new(&"pay".into(), &key.into()).to_string();
        assert_eq!(show("alice:order-7"), "\"pay:alice:order-7\"");
        assert_eq!(show("größe 📦"), "\"pay:größe 📦\"");
        assert_eq!(show("a\nb\"c"), "\"pay:a\\nb\\\"c\"");
        assert_eq!(show(&"k".repeat(500)).chars().count(), 6 + 80 + 1);
    }
}
