//! Numbers for values, so that a state of a world is a few numbers. Two values are the same if they
//! are written the same.

use std::collections::HashMap;
use std::fmt::{self, Debug, Write};
use std::hash::{DefaultHasher, Hasher};

/// Hashes what is written, with 128 bits.
struct Digest(DefaultHasher, DefaultHasher);

impl Write for Digest {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.write(s.as_bytes());
        self.1.write(s.as_bytes());
        Ok(())
    }
}

fn digest(text: fmt::Arguments<'_>) -> u128 {
    let (one, mut other) = (DefaultHasher::new(), DefaultHasher::new());
    other.write_u8(1);
    let mut digest = Digest(one, other);
    digest.write_fmt(text).expect("a digest takes all");
    u128::from(digest.0.finish()) << 64 | u128::from(digest.1.finish())
}

pub(crate) type Id = u32;

#[derive(Debug)]
pub(crate) struct Interner<T> {
    values: Vec<T>,
    ids: HashMap<u128, Id>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: Vec::new(), ids: HashMap::new() }
    }
}

impl<T> Interner<T> {
    /// `text` must have all that tells `value` apart.
    pub(crate) fn put_as(&mut self, value: T, text: fmt::Arguments<'_>) -> Id {
        let values = &mut self.values;
        *self.ids.entry(digest(text)).or_insert_with(|| {
            values.push(value);
            (values.len() - 1) as Id
        })
    }

    pub(crate) fn get(&self, id: Id) -> &T {
        &self.values[id as usize]
    }
}

impl<T: Debug + Clone> Interner<T> {
    pub(crate) fn put(&mut self, value: &T) -> Id {
        self.put_as(value.clone(), format_args!("{value:?}"))
    }
}
