//! Checks of gradients against central differences, in f64; for tests only.

/// `count` numbers in -1..1 that look random (an affine congruential generator, Knuth's constants).
pub(crate) fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The scalar that tests differentiate: outputs weighted by fixed numbers, so that `dy` is those numbers.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Compares `gradient` with (f(x + h) - f(x - h)) / 2h for every element of `x`.
pub(crate) fn check(name: &str, x: &[f64], gradient: &[f64], f: impl Fn(&[f64]) -> f64) {
    const STEP: f64 = 1e-5;
    assert_eq!(x.len(), gradient.len(), "{name}");
    let mut moved = x.to_vec();
    for i in 0..x.len() {
        moved[i] = x[i] + STEP;
        let above = f(&moved);
        moved[i] = x[i] - STEP;
        let below = f(&moved);
        moved[i] = x[i];
        let numeric = (above - below) / (2.0 * STEP);
        let error = (numeric - gradient[i]).abs() / numeric.abs().max(1.0);
        assert!(error < 1e-7, "{name}[{i}]: gradient {} but differences give {numeric}", gradient[i]);
    }
}

#[test]
#[should_panic(expected = "differences give")]
fn a_wrong_gradient_is_caught() {
    check("x", &[2.0], &[4.1], |x| x[0] * x[0]);
}
