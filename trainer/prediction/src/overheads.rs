//! The time of a step beyond the kernels and the links of one rank. Each overhead has a name and a switch.
//!
//! ```text
//! device_variation   devices differ in speed: all wait for the slowest of n     relative x E[max of n]
//! jitter_us          hosts are late now and then: all wait for the latest of n  absolute x E[max of n]
//! contention         the exchange's kernels take cores from the computation     share x what is overlapped
//! input              a node's CPUs decode so many samples a second              the step waits for its batch
//! ```

use super::StepPrediction;
use allfold_sim::Picos;

/// The overheads. An overhead of 0 (`input`: of `None`) changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overheads {
    /// Standard deviation of devices' speed, as a share of the step.
    pub device_variation: f64,
    /// Standard deviation of a host's lateness in a step, in microseconds.
    pub jitter_us: f64,
    /// Share of a device's cores that an exchange takes.
    pub contention: f64,
    /// Samples per second that the CPUs of a node prepare.
    pub input: Option<f64>,
    /// The number of ranks of a node.
    pub node: u32,
}

impl Overheads {
    /// No overheads.
    pub const NONE: Overheads =
        Overheads { device_variation: 0.0, jitter_us: 0.0, contention: 0.0, input: None, node: 8 };

    /// Adds the overheads to a predicted step.
    pub fn apply(&self, prediction: &mut StepPrediction) {
        let step = prediction.time.total();
        let latest = expected_max(prediction.ranks);
        let wait = step.as_micros() * self.device_variation * latest + self.jitter_us * latest;
        let hidden = prediction.communication.0.saturating_sub(prediction.time.exposed.0);
        prediction.time.backward += Picos((hidden as f64 * self.contention) as u64);
        prediction.time.exposed += Picos((wait.max(0.0) * 1e6) as u64);
        if let Some(rate) = self.input.filter(|rate| *rate > 0.0) {
            let ranks = f64::from(prediction.ranks.min(self.node));
            let batch = prediction.samples as f64 / f64::from(prediction.ranks.max(1));
            let needs = Picos((ranks * batch / rate * 1e12) as u64);
            // Batches are prepared while the previous step computes, so only the excess counts.
            prediction.time.data += Picos(needs.0.saturating_sub(prediction.time.total().0));
        }
    }
}

/// The expected greatest of n standard normal draws (G. Blom, "Statistical estimates and transformed beta-variables",
/// 1958), by the rational approximation 26.2.23 of Abramowitz and Stegun; 0 for one draw.
pub fn expected_max(n: u32) -> f64 {
    if n < 2 {
        return 0.0;
    }
    // The probability of a larger draw; Blom's formula gives that of a smaller one, (n - 3/8) / (n + 1/4).
    let above = 0.625 / (f64::from(n) + 0.25);
    let t = (-2.0 * above.ln()).sqrt();
    t - (2.515_517 + t * (0.802_853 + t * 0.010_328))
        / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_of_n_draws_is_the_tabulated_one() {
        // H. L. Harter, "Expected values of normal order statistics", Biometrika 48 (1961).
        for (n, expected) in [(1, 0.0), (2, 0.5642), (4, 1.0294), (8, 1.4236), (16, 1.7660), (100, 2.5076)] {
            assert!((expected_max(n) - expected).abs() < 0.03, "{n}: {}", expected_max(n));
        }
        assert!((1..17).map(|log| expected_max(1 << log)).is_sorted());
    }
}
