//! The reduction operators on single elements.

/// The reduction operators on one element type; sealed, since it is in a private module.
pub trait Arithmetic: Copy {
    /// The sum a + b.
    fn sum(a: Self, b: Self) -> Self;
    /// The product a * b.
    fn prod(a: Self, b: Self) -> Self;
    /// The lesser of `a` and `b`.
    fn min(a: Self, b: Self) -> Self;
    /// The greater of `a` and `b`.
    fn max(a: Self, b: Self) -> Self;
    /// `into[i] = into[i] / parts`; `parts` is not zero.
    fn divide(into: &mut [Self], parts: u32);
}
