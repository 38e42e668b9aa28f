//! The slots of a cluster: which one has a key, and the keys that each slot has for itself.

use std::sync::LazyLock;

pub(crate) const SLOTS: usize = 16_384;

/// Returns the slot in which the servers of a cluster keep the key.
pub fn slot_of(key: &str) -> u16 {
    let tagged = key.find('{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.find('}').map(|len| &rest[..len])
    });
    crc16(tagged.filter(|tag| !tag.is_empty()).unwrap_or(key)) % SLOTS as u16
}

/// Returns a key of this slot that takes the place of `key` there. All clients compute the same.
pub fn slot_key(slot: u16, key: &str) -> String {
    format!("{key}:{{{}}}", TAGS[usize::from(slot)])
}

/// For each slot the smallest number whose digits are in it.
static TAGS: LazyLock<Box<[u32]>> = LazyLock::new(|| {
    let mut tags = vec![None; SLOTS];
    let mut open = SLOTS;
    for number in 0_u32.. {
        let tag = &mut tags[usize::from(slot_of(&number.to_string()))];
        if tag.replace(tag.unwrap_or(number)).is_none() {
            open -= 1;
        }
        if open == 0 {
            break;
        }
    }
    tags.into_iter().flatten().collect()
});

/// CRC-16/XMODEM, as the cluster specification defines it.
fn crc16(text: &str) -> u16 {
    text.bytes().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{LockKeys, MARKER};

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16("123456789"), 0x31c3);
        for (key, slot) in [("foo", 12_182), ("somekey", 11_058), ("foo{hash_tag}", 2_515)] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
        assert_eq!(slot_of("{user1000}.following"), slot_of("user1000"));
        assert_eq!(slot_of("foo{{bar}}zap"), slot_of("{bar"));
        assert_ne!(slot_of("foo{}{bar}"), slot_of("bar"));
    }

    #[test]
    fn each_slot_has_a_marker_of_its_own() {
        for slot in 0..SLOTS as u16 {
            let key = slot_key(slot, MARKER);
            assert_eq!(slot_of(&key), slot);
            assert!(key.len() < MARKER.len() + 10, "{key}");
        }
    }

    #[test]
    fn all_keys_of_a_lock_are_in_one_slot() {
        for name in ["a", "a:b", "{a}b", "a{b", "ä", "a{b}c}", "{"] {
            let keys = LockKeys::new(name);
            let slots = [keys.lock(), keys.fence(), keys.queue(), keys.meta()].map(slot_of);
            assert_eq!(slots, [slot_of(name); 4], "{name}");
        }
    }
}
