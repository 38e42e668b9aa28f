//! Keys of palisade, known by their form.

use palisade::internal::{DECISIONS, MARKER, NOTE};

/// Such a key shows that the deployment had data before.
pub(crate) fn is_decision(key: &[u8]) -> bool {
    String::from_utf8_lossy(key).contains(&format!("idem:{DECISIONS}:"))
}

/// With an empty prefix, any key of palisade's form. Not the marker, which the script examines.
pub(crate) fn is_palisades(key: &[u8], prefix: &str) -> bool {
    let key = String::from_utf8_lossy(key);
    if [MARKER, NOTE].contains(&&*key) {
        return false;
    }
    if !prefix.is_empty() {
        return key.starts_with(prefix)
            || key.strip_prefix('{').is_some_and(|k| k.starts_with(prefix));
    }
    let side = [":fence", ":queue", ":meta"].iter().any(|what| key.ends_with(what));
    let is = |kind: &str| key.starts_with(kind) || key.contains(&format!(":{kind}"));
    side || is("idem:") || is("permits:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn palisades_keys_are_known_by_their_form_or_by_the_prefix() {
        for key in ["{a}:fence", "idem:orders:7", "app:idem:orders:7", "permits:gpu", "{x}:meta"] {
            assert!(is_palisades(key.as_bytes(), ""), "{key}");
        }
        for key in ["users:7", "fence", "session:idempotent", "palisade:barrier", MARKER] {
            assert!(!is_palisades(key.as_bytes(), ""), "{key}");
        }
        assert!(is_palisades(b"app:x", "app:") && is_palisades(b"{app:x}:fence", "app:"));
        assert!(!is_palisades(b"other:app:x", "app:"));
    }
}
