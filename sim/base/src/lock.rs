//! Locking of a mutex that a panicked thread may have poisoned.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex even if it is poisoned because a thread panicked while it held the lock. Only for data that every holder keeps
/// consistent at all times, and in which the failure of a rank is recorded by other means.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_there_after_a_panic() {
        let count = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let mut count = lock(&count);
                *count = 2;
                panic!("with the lock held");
            });
            holder.join().is_err()
        });
        assert!(panicked && count.is_poisoned());
        assert_eq!(*lock(&count), 2);
    }
}
