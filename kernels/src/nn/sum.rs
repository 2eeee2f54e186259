//! Long sums, in one fixed order, accumulated in f64.

/// Eight partial sums: enough to hide the latency of an addition, and few enough to stay in registers.
const LANES: usize = 8;

/// The sum of `term(i)` for i below `count`, in f64: lane l adds every eighth term from l on, then the lanes are
/// added in pairs. The order depends on `count` alone.
#[inline]
pub(super) fn sum_of(count: usize, term: impl Fn(usize) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let whole = count / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    for (lane, i) in (whole..count).enumerate() {
        lanes[lane] += term(i);
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

#[cfg(test)]
mod tests {
    use super::sum_of;

    #[test]
    fn every_term_is_added_once() {
        for count in 0..40 {
            assert_eq!(sum_of(count, |i| (1u64 << i) as f64), ((1u64 << count) - 1) as f64);
        }
    }
}
