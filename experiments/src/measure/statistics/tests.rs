//! Means, medians and percentiles of known values.

use super::*;

#[test]
fn the_steady_median_leaves_out_the_first_third() {
    assert_eq!(steady_median(&[]), 0.0);
    assert_eq!(steady_median(&[7.0]), 7.0);
    assert_eq!(steady_median(&[900.0, 3.0, 2.0]), 2.5);
    assert_eq!(steady_median(&[900.0, 800.0, 3.0, 1.0, 2.0, 5.0, 4.0]), 3.0);
}

#[test]
fn a_percentile_is_one_of_the_times() {
    assert_eq!(CallTimes::of(&[]), None);
    let times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
    let spread = CallTimes::of(&times).unwrap();
    assert_eq!((spread.least, spread.greatest, spread.mean), (1.0, 200.0, 100.5));
    assert_eq!(spread.percentiles, [100.0, 190.0, 198.0]);
    assert_eq!(CallTimes::of(&[3.0, 3.0]).unwrap().variation(), 0.0);
    assert_eq!(CallTimes::of(&[7.0]).unwrap().percentiles, [7.0; 3]);
}

#[test]
fn the_error_shrinks_with_the_root_of_the_count() {
    assert_eq!(mean_and_error(&[]), (0.0, 0.0));
    assert_eq!(mean_and_error(&[3.0]), (3.0, 0.0));
    let (mean, error) = mean_and_error(&[1.0, 3.0, 1.0, 3.0]);
    assert_eq!(mean, 2.0);
    assert!((error - (4.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
}
