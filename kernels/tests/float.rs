//! The functions of floats for vectorised loops, against those of f64.
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_kernels::nn::Float;

#[test]
fn the_fast_exponential_is_within_two_units() {
    for i in -870_000..880_000 {
        let x = i as f32 * 1e-4;
        let (got, want) = (Float::exp_fast(x), f64::from(x).exp());
        assert!((f64::from(got) - want).abs() <= 2.4e-7 * want, "{x}: {got} {want}");
    }
    let extremes = [f32::NEG_INFINITY, -1e30, -88.0, 100.0].map(Float::exp_fast);
    assert_eq!(extremes, [0.0, 0.0, 0.0, f32::INFINITY]);
    assert!(Float::exp_fast(f32::NAN).is_nan());
}

#[test]
fn the_normal_tail_is_near_that_of_f64() {
    for i in -9000..9000 {
        let x = f64::from(i) * 1e-3;
        let ((p, d), (q, e)) = (Float::tail(x), Float::tail(x as f32));
        assert!((p - f64::from(q)).abs() < 4e-7 && (d - f64::from(e)).abs() < 4e-7, "{x}");
    }
}
