//! Dynamic loss scaling (P. Micikevicius et al., "Mixed Precision Training", ICLR 2018), by PyTorch's `GradScaler`.
//!
//! ```text
//! loss x scale -> backward -> exchange -> found inf or NaN on any rank?
//!                                           no:  grads / scale, step;  after `interval` of these scale x growth
//!                                           yes: no rank steps;        scale x backoff, but never below the floor
//! ```
//!
//! PyTorch's scaler has no floor: enough overflows in a row take its scale to 0, where gradients are 0 / 0 and the scale stays 0.
//! PyTorch's ranks do not exchange `found` either: if each holds its own part of the gradients, some step and some skip. As in
//! PyTorch, a skipped step updates the running statistics of batch norms; unlike there, they never become infinite or NaN.

use crate::Result;
use allfold_collectives::{Communicator, ReduceOp};
use allfold_kernels::nn::{Float, OpCost};

/// How a loss scale changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalerOptions {
    /// Factor of the scale after `interval` steps in a row without overflow.
    pub growth: f64,
    /// Factor of the scale after a gradient that was not finite.
    pub backoff: f64,
    /// The number of steps in a row without overflow after which the scale grows.
    pub interval: u64,
    /// Lower limit of the scale.
    pub floor: f64,
}

impl Default for ScalerOptions {
    /// PyTorch's values, with a lower limit of 2^-14 (the least normal f16).
    fn default() -> ScalerOptions {
        ScalerOptions { growth: 2.0, backoff: 0.5, interval: 2000, floor: 2f64.powi(-14) }
    }
}

/// A loss scale and its history: all of a scaler's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradScaler {
    /// The factor on the loss: f32 as in PyTorch, so it stops growing at the limit of f32.
    pub scale: f32,
    /// The number of steps without overflow since the scale changed.
    pub good: u64,
    /// Whether the last step was skipped.
    pub skipped: bool,
    rules: ScalerOptions,
}

impl GradScaler {
    /// A loss scaler that starts from this scale.
    pub fn new(scale: f32, rules: ScalerOptions) -> GradScaler {
        GradScaler { scale, good: 0, skipped: false, rules }
    }

    /// Divides `grads` by the scale. Returns whether any of them was infinite or NaN.
    pub fn unscale<F: Float>(&self, grads: &mut [F]) -> bool {
        let inverse = F::from_f64(1.0 / f64::from(self.scale));
        let mut found = false;
        for g in grads {
            // x times 0 is 0 for every finite x, and NaN for an infinity or NaN.
            found |= (*g * F::ZERO).is_nan();
            *g = *g * inverse;
        }
        found
    }

    /// Whether any rank found a gradient that is not finite, in which case all ranks skip the step.
    ///
    /// # Errors
    /// If communication fails.
    pub fn found_anywhere(found: bool, comm: &Communicator) -> Result<bool> {
        let mut found = [u8::from(found)];
        comm.all_reduce(&mut found, ReduceOp::Max)?;
        Ok(found[0] > 0)
    }

    /// Updates the scale after a step. `found`: the step was skipped, because a gradient was not finite.
    pub fn update(&mut self, found: bool) {
        self.skipped = found;
        if found {
            self.good = 0;
            self.scale = (self.scale * self.rules.backoff as f32).max(self.rules.floor as f32);
            return;
        }
        self.good += 1;
        if self.good == self.rules.interval {
            self.good = 0;
            let grown = self.scale * self.rules.growth as f32;
            if grown.is_finite() {
                self.scale = grown;
            }
        }
    }
}

/// Cost of [`GradScaler::unscale`] over `elements`.
pub fn unscale_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(2 * elements, 2 * elements, size_of::<F>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Optimiser, Sgd};
    use serde_json::Value;

    fn scaler(kwargs: &Value, floor: f64) -> GradScaler {
        let number = |key: &str| kwargs[key].as_f64().unwrap();
        let interval = kwargs["growth_interval"].as_u64().unwrap();
        let rules = ScalerOptions {
            growth: number("growth_factor"),
            backoff: number("backoff_factor"),
            interval,
            floor,
        };
        GradScaler::new(number("init_scale") as f32, rules)
    }

    /// A step on one parameter, 1 at first, whose gradient is 1 times `inject`.
    fn step(scaler: &mut GradScaler, param: &mut f32, inject: &str) -> bool {
        let factor = match inject {
            "inf" => f32::INFINITY,
            "nan" => f32::NAN,
            _ => 1.0,
        };
        let mut grads = [scaler.scale * factor];
        let found = scaler.unscale(&mut grads);
        if !found {
            let mut params = [*param];
            Sgd::new(0.0, 0.0, false).step(0.1, &mut params, &grads);
            *param = params[0];
        }
        scaler.update(found);
        found
    }

    #[test]
    fn agrees_with_pytorch_in_six_sequences() {
        let oracle: Value = crate::oracle::json("grad_scaler.json");
        let cases = oracle["cases"].as_array().unwrap();
        crate::oracle::counted(cases.len(), 6);
        for case in cases {
            // One of the cases reaches a scale of 0, which only a scaler without a floor can.
            let (mut scaler, mut param) = (scaler(&case["kwargs"], 0.0), 1.0);
            for (i, want) in case["steps"].as_array().unwrap().iter().enumerate() {
                let skipped = step(&mut scaler, &mut param, want["inject"].as_str().unwrap());
                let name = format!("{}, step {i}", case["name"]);
                assert_eq!(skipped, want["skipped"].as_bool().unwrap(), "{name}");
                assert_eq!(f64::from(scaler.scale), want["scale_after"].as_f64().unwrap(), "{name}");
                assert_eq!(scaler.good, want["growth_tracker"].as_u64().unwrap(), "{name}");
                match want["param"].as_f64() {
                    Some(want) => assert!((f64::from(param) - want).abs() <= 2e-6, "{name}: {param}"),
                    None => assert!(param.is_nan(), "{name}: {param}"),
                }
            }
        }
    }

    #[test]
    fn a_floor_keeps_the_scale_and_the_weights() {
        let (mut scaler, mut param) =
            (GradScaler::new(1.0, ScalerOptions { interval: 2, ..ScalerOptions::default() }), 1.0);
        for _ in 0..200 {
            step(&mut scaler, &mut param, "inf");
        }
        assert_eq!((scaler.scale, param), (2f32.powi(-14), 1.0));
        step(&mut scaler, &mut param, "");
        step(&mut scaler, &mut param, "");
        assert_eq!((scaler.scale, scaler.good), (2f32.powi(-13), 0));
        assert!((param - 0.8).abs() < 1e-6);
    }

    /// Two optimisers with one scale: the one without overflow steps, and the scale backs off once.
    #[test]
    fn agrees_with_pytorch_on_two_optimisers() {
        let oracle: Value = crate::oracle::json("grad_scaler.json");
        let mut scaler = GradScaler::new(65536.0, ScalerOptions { interval: 3, ..ScalerOptions::default() });
        for want in oracle["two_optimizers"].as_array().unwrap() {
            let bad = want["bad_b"].as_bool().unwrap();
            let mut grads = [[scaler.scale], [scaler.scale * if bad { f32::INFINITY } else { 1.0 }]];
            let found = grads.each_mut().map(|grads| scaler.unscale(grads));
            assert_eq!(found, ["a_skipped", "b_skipped"].map(|key| want[key].as_bool().unwrap()));
            scaler.update(found.contains(&true));
            assert_eq!(f64::from(scaler.scale), want["scale_after"].as_f64().unwrap());
            assert_eq!(scaler.good, want["growth_tracker"].as_u64().unwrap());
        }
    }
}
