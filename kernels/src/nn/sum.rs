//! Long sums in one fixed order, accumulated in f64.

use super::Float;
use super::thread_pool::share_rows_of;

/// The number of partial sums: enough to hide the latency of an addition, and few enough to stay in registers.
const LANES: usize = 16;

/// Applies `body` to each lane and the lane half of the lanes further on, then halves the number of lanes, until one lane is left.
/// The loops have constant lengths, so that lanes stay in registers.
macro_rules! halves {
    ($lane:ident, $other:ident => $body:expr) => {
        halves!(8, $lane, $other => $body);
        halves!(4, $lane, $other => $body);
        halves!(2, $lane, $other => $body);
        halves!(1, $lane, $other => $body);
    };
    ($half:literal, $lane:ident, $other:ident => $body:expr) => {
        for $lane in 0..$half {
            let $other = $lane + $half;
            $body;
        }
    };
}

/// The sum of `term(a)` over `a`, in f64: lane l adds every sixteenth term from l on, then the lanes are added in
/// pairs. The order depends on the length alone.
#[inline(always)]
pub(super) fn sum<F: Float>(a: &[F], term: impl Fn(f64) -> f64) -> f64 {
    sum_pairs(a, a, |a, _| term(a))
}

/// The sum of `term(a, b)` over two slices of the same length, in the order of [`sum`].
#[inline(always)]
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
    pairs(lanes)
}

/// Two sums at once, over the two terms that `terms(a, b)` returns, in the order of [`sum`].
#[inline(always)]
pub(super) fn sums_of_pairs<F: Float>(
    a: &[F],
    b: &[F],
    terms: impl Fn(f64, f64) -> (f64, f64),
) -> (f64, f64) {
    let (mut firsts, mut seconds) = ([0.0; LANES], [0.0; LANES]);
    let ((rows_a, rest_a), (rows_b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (row_a, row_b) in rows_a.iter().zip(rows_b) {
        for lane in 0..LANES {
            let (first, second) = terms(row_a[lane].to_f64(), row_b[lane].to_f64());
            firsts[lane] += first;
            seconds[lane] += second;
        }
    }
    for (lane, (a, b)) in rest_a.iter().zip(rest_b).enumerate() {
        let (first, second) = terms(a.to_f64(), b.to_f64());
        firsts[lane] += first;
        seconds[lane] += second;
    }
    (pairs(firsts), pairs(seconds))
}

/// The largest of some numbers. The result may ignore a NaN; softmax then becomes NaN through the NaN's exponential.
#[inline(always)]
pub(super) fn largest<F: Float>(a: &[F]) -> F {
    let mut lanes = [a[0]; LANES];
    let (rows, rest) = a.as_chunks::<LANES>();
    for row in rows {
        for lane in 0..LANES {
            lanes[lane] = if row[lane] > lanes[lane] { row[lane] } else { lanes[lane] };
        }
    }
    halves!(lane, other => if lanes[other] > lanes[lane] { lanes[lane] = lanes[other] });
    rest.iter().fold(lanes[0], |max, &a| if a > max { a } else { max })
}

#[inline(always)]
fn pairs(mut lanes: [f64; LANES]) -> f64 {
    halves!(lane, other => lanes[lane] += lanes[other]);
    lanes[0]
}

super::simd::vectorised! {
    fn squares<F>(a: &[F]) -> f64 {
        sum(a, |a| a * a)
    }

    fn add_lines<F>(lines: &[F], width: usize, from: usize, sums: &mut [F]) {
        sums.fill(F::ZERO);
        for line in lines.chunks_exact(width) {
            sums.iter_mut().zip(&line[from..]).for_each(|(sum, &x)| *sum += x);
        }
    }
}

/// The sums of the columns of `lines`, added in order of rows. A row has as many elements as `sums`.
pub(super) fn columns<F: Float>(lines: &[F], sums: &mut [F]) {
    let width = sums.len();
    if width == 0 {
        return;
    }
    share_rows_of(lines.len(), (sums, 1), (&mut [(); 0], 0), |range, sums, _| {
        add_lines(lines, width, range.start, sums);
    });
}

/// The Euclidean norm, summed in f64 in a fixed order.
pub fn norm<F: Float>(a: &[F]) -> f64 {
    squares(a).sqrt()
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
