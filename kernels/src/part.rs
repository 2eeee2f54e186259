//! A vector that is split into owned parts and joined again without copying.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// A range of elements of a vector that was split. Each part owns its elements; the last part to be dropped frees the vector.
pub struct SplitVec<T> {
    whole: Arc<Whole<T>>,
    range: Range<usize>,
}

/// The boxed slice behind all parts of a vector. Only the parts read and write the slice.
struct Whole<T>(NonNull<[T]>);

// SAFETY: elements are accessed through parts only, and parts are disjoint, as if each were a vector of its own.
unsafe impl<T: Send> Send for Whole<T> {}
// SAFETY: elements are accessed through parts only, and parts are disjoint, as if each were a vector of its own.
unsafe impl<T: Sync> Sync for Whole<T> {}

impl<T> Drop for Whole<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box, and the last part is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T> SplitVec<T> {
    /// Splits off the elements from `at` on; the returned part is empty if `at` is not below the length.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> SplitVec<T> {
        let at = self.range.start + at.min(self.range.len());
        let rest = at..self.range.end;
        self.range.end = at;
        SplitVec { whole: self.whole.clone(), range: rest }
    }

    /// Joins `next` to the end of this part.
    ///
    /// # Errors
    /// `next` itself, if it does not follow this part in the same vector.
    pub fn join(&mut self, next: SplitVec<T>) -> Result<(), SplitVec<T>> {
        if !Arc::ptr_eq(&self.whole, &next.whole) || self.range.end != next.range.start {
            return Err(next);
        }
        self.range.end = next.range.end;
        Ok(())
    }
}

impl<T> From<Vec<T>> for SplitVec<T> {
    /// The whole vector as one part. A vector with spare capacity is copied.
    fn from(elements: Vec<T>) -> SplitVec<T> {
        let elements = Box::leak(elements.into_boxed_slice());
        let range = 0..elements.len();
        SplitVec { whole: Arc::new(Whole(NonNull::from(elements))), range }
    }
}

impl<T> Deref for SplitVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        let start = self.whole.0.as_ptr().cast::<T>();
        // SAFETY: the range is inside the vector and belongs to this part only.
        unsafe { std::slice::from_raw_parts(start.add(self.range.start), self.range.len()) }
    }
}

impl<T> DerefMut for SplitVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let start = self.whole.0.as_ptr().cast::<T>();
        // SAFETY: the range is inside the vector, belongs to this part only, and is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(start.add(self.range.start), self.range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_what_they_were_cut_from_and_join_in_place(len in 0..40usize, cuts in prop::collection::vec(0..50usize, 0..6)) {
            let elements: Vec<usize> = (0..len).collect();
            let mut head = SplitVec::from(elements.clone());
            let place = head.as_ptr();
            let mut tails: Vec<SplitVec<usize>> = cuts.iter().map(|&cut| head.split_off(cut)).collect();
            let mut flat = head.to_vec();
            tails.iter().rev().for_each(|tail| flat.extend_from_slice(tail));
            prop_assert_eq!(&flat, &elements);
            std::thread::scope(|scope| {
                tails.iter_mut().for_each(|tail| { scope.spawn(|| tail.iter_mut().for_each(|x| *x += 1)); });
                head.iter_mut().for_each(|x| *x += 1);
            });
            while let Some(tail) = tails.pop() {
                prop_assert!(head.join(tail).is_ok());
            }
            prop_assert_eq!(head.as_ptr(), place);
            prop_assert!(head.iter().zip(&elements).all(|(x, before)| *x == before + 1));
        }
    }

    #[test]
    fn strangers_are_given_back() {
        let mut a = SplitVec::from(vec![1, 2, 3]);
        let last = a.split_off(2);
        let middle = a.split_off(1);
        let last = a.join(last).err().unwrap();
        assert_eq!(last[..], [3]);
        assert!(a.join(SplitVec::from(vec![2])).is_err());
        assert!(a.join(middle).is_ok() && a.join(last).is_ok());
        assert_eq!(a[..], [1, 2, 3]);
    }
}
