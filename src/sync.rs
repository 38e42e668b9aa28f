//! A mutex without poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No code may panic, or await, in the middle of a change of the data.
#[derive(Debug, Default)]
pub(crate) struct SyncMutex<T>(Mutex<T>);

impl<T> SyncMutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_are_used_after_a_panic_of_a_holder() {
        let mutex = SyncMutex::new(1);
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut locked = mutex.lock();
            *locked = 2;
            panic!("while it is locked");
        }));
        assert!(panics.is_err());
        assert_eq!(*mutex.lock(), 2);
    }
}
