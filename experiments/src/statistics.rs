//! Means and their errors.

/// The mean, and its standard error; (0, 0) of nothing, no error of a single value.
pub fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / count;
    if values.len() == 1 {
        return (mean, 0.0);
    }
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_shrinks_with_the_root_of_the_count() {
        assert_eq!(mean_and_error(&[]), (0.0, 0.0));
        assert_eq!(mean_and_error(&[3.0]), (3.0, 0.0));
        let (mean, error) = mean_and_error(&[1.0, 3.0, 1.0, 3.0]);
        assert_eq!(mean, 2.0);
        assert!((error - (4.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
    }
}
