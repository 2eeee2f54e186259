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
    /// The whole vector as one part. A vector with spare capacity is reallocated first.
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
