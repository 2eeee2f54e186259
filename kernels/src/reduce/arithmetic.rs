//! What each element type does, one element at a time.

/// The operators on one type of elements; sealed by living in a private module.
pub trait Arithmetic: Copy {
    /// a + b.
    fn sum(a: Self, b: Self) -> Self;
    /// a * b.
    fn prod(a: Self, b: Self) -> Self;
    /// The lesser of `a` and `b`.
    fn min(a: Self, b: Self) -> Self;
    /// The greater of `a` and `b`.
    fn max(a: Self, b: Self) -> Self;
    /// `into[i] = into[i] / parts`; `parts` is not zero.
    fn divide(into: &mut [Self], parts: u32);
}
