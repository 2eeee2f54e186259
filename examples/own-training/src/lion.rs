//! Lion (X. Chen et al., "Symbolic discovery of optimization algorithms", 2023).
//!
//! ```text
//! c = beta1 m + (1 - beta1) grad
//! p = p - lr (sign(c) + weight_decay p)
//! m = beta2 m + (1 - beta2) grad
//! ```

use allfold_kernels::nn::{Float, OpCost};
use allfold_trainer::optim::OptimiserState;
use allfold_trainer::{Config, Optimiser, ParamSpec, Result};

/// The optimiser, with one momentum per parameter element.
pub struct Lion<F> {
    betas: [f64; 2],
    weight_decay: f64,
    steps: u64,
    /// Empty before the first step.
    momentum: Vec<F>,
}

impl<F: Float> Lion<F> {
    /// Lion with these decays of the momentum, and with a weight decay that is decoupled from the gradient.
    pub fn new(betas: [f64; 2], weight_decay: f64) -> Lion<F> {
        Lion { betas, weight_decay, steps: 0, momentum: Vec::new() }
    }
}

impl<F: Float> Optimiser<F> for Lion<F> {
    fn step(&mut self, lr: f64, params: &mut [F], grads: &[F]) {
        self.steps += 1;
        self.momentum.resize(params.len(), F::ZERO);
        let [beta1, beta2] = self.betas;
        for ((p, g), m) in params.iter_mut().zip(grads).zip(&mut self.momentum) {
            let (value, grad, momentum) = (p.to_f64(), g.to_f64(), m.to_f64());
            let towards = beta1 * momentum + (1.0 - beta1) * grad;
            let sign = if towards == 0.0 { 0.0 } else { towards.signum() };
            *p = F::from_f64(value - lr * (sign + self.weight_decay * value));
            *m = F::from_f64(beta2 * momentum + (1.0 - beta2) * grad);
        }
    }

    fn cost(&self, params: usize) -> OpCost {
        OpCost::launch(10 * params, 5 * params, size_of::<F>())
    }

    fn state(&mut self) -> OptimiserState<'_, F> {
        OptimiserState { steps: &mut self.steps, vectors: vec![("exp_avg", &mut self.momentum)] }
    }
}

/// Lion with the configuration's weight decay, and the decays that its authors recommend.
pub fn build<F: Float>(config: &Config, _params: &[ParamSpec]) -> Result<Box<dyn Optimiser<F>>> {
    Ok(Box::new(Lion::new([0.9, 0.99], config.optimiser.weight_decay)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_by_hand() {
        let mut lion = Lion::<f64>::new([0.5, 0.5], 0.5);
        let mut p = [1.0];
        lion.step(0.1, &mut p, &[2.0]);
        // c = 1, p = 1 - 0.1 (1 + 0.5), m = 1.
        assert!((p[0] - 0.85).abs() < 1e-15);
        lion.step(0.1, &mut p, &[-3.0]);
        // c = 0.5 - 1.5 = -1, p = 0.85 - 0.1 (-1 + 0.425).
        assert!((p[0] - 0.9075).abs() < 1e-15);
    }
}
