//! [`Scope`]: the owner of an idempotency key, such as a user. Two owners can use the same key.

use std::fmt::Write as _;

/// Maximum length of a record's name in bytes. The name consists of the scope and the key.
const NAME_MAX: usize = 512;

/// The owner of an idempotency key, for example a user. If two owners use the same key, their
/// requests have different records. Otherwise a caller could guess another caller's key and read
/// the other caller's response.
///
/// Derive the owner from the data that authenticated the request. Never derive the owner from data
/// that the caller chooses.
///
/// ```
/// use palisade_tower::Scope;
/// let user = Scope::of("acme").and("alice"); // tenant, user
/// # let _ = user;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope(Vec<String>);

impl Scope {
    /// Creates the scope of the tenant or user `name`. If `name` is empty, the layer refuses the
    /// request.
    pub fn of(name: impl Into<String>) -> Self {
        Self(vec![name.into()])
    }

    /// Narrows the scope, for example to a user of the tenant.
    #[must_use]
    pub fn and(mut self, name: impl Into<String>) -> Self {
        self.0.push(name.into());
        self
    }

    /// Creates the scope that all callers share. In this scope a key means the same request for
    /// every caller. Use this scope only if every caller may see every response. It must also do no
    /// harm if a caller uses another caller's key first.
    pub fn all_callers() -> Self {
        Self(Vec::new())
    }

    /// Returns true if a part of the scope is an empty text. Then the scope names no owner of a
    /// key.
    pub(crate) fn has_empty_part(&self) -> bool {
        self.0.iter().any(String::is_empty)
    }

    /// Returns the name of the record of `key` in this scope. The name consists of the parts of the
    /// scope and the key, separated by `:`. Each part is escaped. So different scopes or keys have
    /// different names. Returns `None` if the name would be longer than 512 bytes.
    pub(crate) fn name(&self, key: &str) -> Option<String> {
        let mut name = String::new();
        for part in &self.0 {
            escape(part, &mut name);
            name.push(':');
        }
        escape(key, &mut name);
        (name.len() <= NAME_MAX).then_some(name)
    }
}

fn escape(part: &str, name: &mut String) {
    for c in part.chars() {
        if c == ':' || c == '%' || c.is_control() {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                let _ = write!(name, "%{byte:02X}");
            }
        } else {
            name.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_scopes_and_keys_have_one_name() {
        let name = |scope: Scope, key: &str| scope.name(key).expect("short");
        assert_eq!(name(Scope::of("acme").and("alice"), "order-7"), "acme:alice:order-7");
        assert_eq!(name(Scope::all_callers(), "order-7"), "order-7");
        let alike = [
            name(Scope::of("a").and("b"), "c"),
            name(Scope::of("a"), "b:c"),
            name(Scope::of("a:b"), "c"),
            name(Scope::all_callers(), "a:b:c"),
            name(Scope::of("a%3Ab"), "c"),
            name(Scope::of("a\u{85}b"), "c"),
        ];
        for (i, one) in alike.iter().enumerate() {
            assert!(!alike[i + 1..].contains(one), "{one}");
            assert!(!one.contains(char::is_control), "{one}");
        }
    }

    #[test]
    fn names_are_limited_and_an_empty_part_is_found() {
        assert!(Scope::of("a".repeat(300)).name(&"k".repeat(211)).is_some());
        assert!(Scope::of("a".repeat(300)).name(&"k".repeat(212)).is_none());
        assert!(Scope::of("").has_empty_part() && Scope::of("a").and("").has_empty_part());
        assert!(!Scope::of("a").has_empty_part() && !Scope::all_callers().has_empty_part());
    }
}
