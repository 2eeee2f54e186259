//! Objects by number. A number is given once: after its object is removed, the number never names another object.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under these locks is atomic, so a panic between two changes leaves consistent data.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle of the driver: a pointer that any thread may use.
#[derive(Clone, Copy)]
pub(super) struct Handle<T>(pub T);

// SAFETY: the driver's handles are shared between threads; the driver locks what must be locked.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: the driver's handles are shared between threads; the driver locks what must be locked.
unsafe impl<T> Sync for Handle<T> {}

/// A table of objects by number.
pub(super) struct Numbered<T>(Mutex<(u32, BTreeMap<u32, T>)>);

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered(Mutex::default())
    }
}

impl<T: Clone> Numbered<T> {
    /// Adds an object and returns its new number.
    pub fn add(&self, thing: T) -> u32 {
        let (next, things) = &mut *lock(&self.0);
        let number = *next;
        *next += 1;
        things.insert(number, thing);
        number
    }

    /// The object with this number, unless it was removed.
    pub fn get(&self, number: u32) -> Option<T> {
        lock(&self.0).1.get(&number).cloned()
    }

    /// Removes the object with this number and returns it.
    pub fn take(&self, number: u32) -> Option<T> {
        lock(&self.0).1.remove(&number)
    }

    /// Removes and returns all objects.
    pub fn drain(&self) -> Vec<T> {
        std::mem::take(&mut lock(&self.0).1).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Numbered;

    #[test]
    fn a_number_that_is_gone_names_nothing() {
        let numbered = Numbered::default();
        let (a, b) = (numbered.add('a'), numbered.add('b'));
        assert_eq!((numbered.take(a), numbered.take(a), numbered.get(a)), (Some('a'), None, None));
        let c = numbered.add('c');
        assert!(c != a && c != b);
        assert_eq!((numbered.get(a), numbered.get(b), numbered.get(c)), (None, Some('b'), Some('c')));
    }
}
