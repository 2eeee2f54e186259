//! Means with their standard errors, and medians.

/// The mean and its standard error. Both are 0 if there are no values; the error of a single value is 0.
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

/// The median of the values after the first third, the warm-up, as in `benches/peers/torch_gpu.py`; 0 if there are no values.
pub fn steady_median(values: &[f64]) -> f64 {
    median(values[values.len() / 3..].to_vec())
}

/// The median; 0 if there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => 0.0,
        length if length % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

/// The spread of the times of single calls, in their unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallTimes {
    /// The least time.
    pub least: f64,
    /// The greatest time.
    pub greatest: f64,
    /// The mean.
    pub mean: f64,
    /// The 50th, 95th and 99th percentile: the least time that so many per cent of the times do not exceed.
    pub percentiles: [f64; 3],
    /// The standard deviation.
    pub deviation: f64,
}

impl CallTimes {
    /// The spread of these times; `None` if there are none.
    pub fn of(times: &[f64]) -> Option<CallTimes> {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, greatest, count) = (*sorted.first()?, *sorted.last()?, sorted.len());
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let deviation = (sorted.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count as f64).sqrt();
        let percentile = |share: usize| sorted[(count * share).div_ceil(100).max(1) - 1];
        Some(CallTimes { least, greatest, mean, percentiles: [50, 95, 99].map(percentile), deviation })
    }

    /// The standard deviation in per cent of the mean.
    pub fn variation(&self) -> f64 {
        if self.mean > 0.0 { 100.0 * self.deviation / self.mean } else { 0.0 }
    }
}

#[cfg(test)]
mod tests;
