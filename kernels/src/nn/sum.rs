//! Long sums, in one fixed order, accumulated in f64.

use super::Float;

/// Eight partial sums: enough to hide the latency of an addition, and few enough to stay in registers.
const LANES: usize = 8;

/// The sum of `term(a)` over `a`, in f64: lane l adds every eighth term from l on, then the lanes are added in
/// pairs. The order depends on the length alone.
#[inline]
pub(super) fn sum<F: Float>(a: &[F], term: impl Fn(f64) -> f64) -> f64 {
    sum_pairs(a, a, |a, _| term(a))
}

/// The sum of `term(a, b)` over two slices side by side, in the order of [`sum`].
#[inline]
pub(super) fn sum_pairs<F: Float>(a: &[F], b: &[F], term: impl Fn(f64, f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let ((rows_a, rest_a), (rows_b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (row_a, row_b) in rows_a.iter().zip(rows_b) {
        for lane in 0..LANES {
            lanes[lane] += term(row_a[lane].to_f64(), row_b[lane].to_f64());
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(rest_a).zip(rest_b) {
        *lane += term(a.to_f64(), b.to_f64());
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

/// The Euclidean norm, summed in f64 in one fixed order.
pub fn norm<F: Float>(a: &[F]) -> f64 {
    sum(a, |a| a * a).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_term_is_added_once() {
        for count in 0..40 {
            let powers: Vec<f64> = (0..count).map(|i| (1u64 << i) as f64).collect();
            let want = ((1u64 << count) - 1) as f64;
            assert_eq!(sum(&powers, |x| x), want);
            assert_eq!(sum_pairs(&powers, &powers, |x, y| 2.0 * x + y), 3.0 * want);
        }
    }
}
