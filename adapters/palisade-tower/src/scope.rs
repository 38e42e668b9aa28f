//! Whose key it is.

use std::fmt::Write as _;

/// Longest name that a record may have, in bytes.
const NAME_MAX: usize = 512;

/// To whom a key belongs: the same key of two callers is two keys. Without it a caller could read
/// another one's response by guessing a key.
///
/// Take it from what authenticated the request, never from what the caller may choose.
///
/// ```
/// use palisade_tower::Scope;
/// let user = Scope::of("acme").and("alice"); // tenant, user
/// # let _ = user;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope(Vec<String>);

impl Scope {
    /// The keys of this tenant or user. An empty name is no scope: the request is refused.
    pub fn of(name: impl Into<String>) -> Self {
        Self(vec![name.into()])
    }

    /// Within it, the keys of this one: a user of the tenant.
    #[must_use]
    pub fn and(mut self, name: impl Into<String>) -> Self {
        self.0.push(name.into());
        self
    }

    /// All callers share their keys. Only where a response holds nothing that another caller may
    /// not see, and where a caller gains nothing by using another one's key first.
    pub fn everybody() -> Self {
        Self(Vec::new())
    }

    /// Whether a part of it is empty, so that nobody is named.
    pub(crate) fn is_nobody(&self) -> bool {
        self.0.iter().any(String::is_empty)
    }

    /// The name of the record: the parts and the key with `:` between them, each escaped so that no
    /// two scopes and keys have the same name. `None` if it would be too long.
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
        assert_eq!(name(Scope::everybody(), "order-7"), "order-7");
        let alike = [
            name(Scope::of("a").and("b"), "c"),
            name(Scope::of("a"), "b:c"),
            name(Scope::of("a:b"), "c"),
            name(Scope::everybody(), "a:b:c"),
            name(Scope::of("a%3Ab"), "c"),
            name(Scope::of("a\u{85}b"), "c"),
        ];
        for (i, one) in alike.iter().enumerate() {
            assert!(!alike[i + 1..].contains(one), "{one}");
            assert!(!one.contains(char::is_control), "{one}");
        }
    }

    #[test]
    fn names_have_an_end_and_nobody_is_no_scope() {
        assert!(Scope::of("a".repeat(300)).name(&"k".repeat(211)).is_some());
        assert!(Scope::of("a".repeat(300)).name(&"k".repeat(212)).is_none());
        assert!(Scope::of("").is_nobody() && Scope::of("a").and("").is_nobody());
        assert!(!Scope::of("a").is_nobody() && !Scope::everybody().is_nobody());
    }
}
