//! The canonical form of a request: JSON without white space, the members of every object sorted by
//! the bytes of their names. Numbers and strings have the form that `serde_json` prints.

use std::fmt::Write as _;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{CodecError, lossless};
use crate::op::FingerprintBytes;

pub(super) fn fingerprint<T: Serialize + ?Sized>(of: &T) -> Result<FingerprintBytes, CodecError> {
    Ok(Sha256::digest(canonical(of)?).into())
}

pub(super) fn of_bytes(request: &[u8]) -> FingerprintBytes {
    Sha256::digest(request).into()
}

fn canonical<T: Serialize + ?Sized>(of: &T) -> Result<Vec<u8>, CodecError> {
    let refuse = |e| CodecError::new("the request has no fingerprint", &e);
    lossless::check(of, false).map_err(refuse)?;
    let mut value = serde_json::to_value(of).map_err(refuse)?;
    // `serde_json` sorts them itself, unless a crate of the build enables `preserve_order`.
    value.sort_all_objects();
    serde_json::to_vec(&value).map_err(refuse)
}

/// 32 hexadecimal digits.
pub(super) fn child_key(record: &str, step: &str) -> String {
    let mut hash = Sha256::new();
    // With the length, ("a", "bc") and ("ab", "c") give different keys.
    hash.update((record.len() as u64).to_be_bytes());
    hash.update(record);
    hash.update(step);
    let digest = hash.finalize();
    digest.iter().take(16).fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;

    fn text<T: Serialize>(of: &T) -> String {
        String::from_utf8(canonical(of).unwrap()).unwrap()
    }

    #[derive(Serialize)]
    struct Order {
        zone: u8,
        account: &'static str,
        lines: Vec<BTreeMap<&'static str, f64>>,
        note: Option<String>,
    }

    #[test]
    fn objects_are_sorted_at_every_depth() {
        let lines = vec![BTreeMap::from([("qty", 1.5), ("ask", 2.0)])];
        let order = Order { zone: 1, account: "é\"\n", lines, note: None };
        let want = r#"{"account":"é\"\n","lines":[{"ask":2.0,"qty":1.5}],"note":null,"zone":1}"#;
        assert_eq!(text(&order), want);
    }

    #[test]
    fn the_order_of_a_map_does_not_matter_and_its_content_does() {
        let many: HashMap<String, u32> = (0..50).map(|i| (format!("k{i}"), i)).collect();
        let same: HashMap<String, u32> = (0..50).rev().map(|i| (format!("k{i}"), i)).collect();
        assert_eq!(fingerprint(&many), fingerprint(&same));
        assert_ne!(fingerprint(&[1, 2]), fingerprint(&[2, 1]));
        assert_ne!(fingerprint(&1), fingerprint(&"1"));
    }

    #[test]
    fn what_json_cannot_say_is_refused() {
        let odd = BTreeMap::from([((1, 2), 3)]);
        assert!(fingerprint(&odd).unwrap_err().to_string().contains("no fingerprint"));
        for number in [f64::NAN, f64::INFINITY] {
            let order =
                Order { zone: 1, account: "a", lines: vec![[("qty", number)].into()], note: None };
            assert!(fingerprint(&order).unwrap_err().to_string().contains("no NaN"));
        }
    }

    #[test]
    fn child_keys_are_stable_and_apart() {
        assert_eq!(child_key("a", "b"), child_key("a", "b"));
        assert_ne!(child_key("a", "bc"), child_key("ab", "c"));
        assert_eq!(child_key("a", "b").len(), 32);
    }
}
