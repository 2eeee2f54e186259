//! Stochastic gradient descent with momentum, by PyTorch's formula (`torch.optim.SGD`).
//!
//! ```text
//! g = grad + weight_decay p
//! v = momentum v + g           (v = g at the first step)
//! p = p - lr v                 (nesterov: p = p - lr (g + momentum v))
//! ```

use super::{Optimiser, OptimiserState};
use allfold_kernels::nn::{Descent, Float, OpCost, descend};

/// SGD, with one velocity per parameter element.
pub struct Sgd<F> {
    momentum: f64,
    weight_decay: f64,
    nesterov: bool,
    steps: u64,
    /// Empty before the first step, and always where the momentum is 0.
    velocity: Vec<F>,
}

impl<F: Float> Sgd<F> {
    /// Momentum 0 is plain gradient descent; weight decay is added to the gradient.
    pub fn new(momentum: f64, weight_decay: f64, nesterov: bool) -> Sgd<F> {
        Sgd { momentum, weight_decay, nesterov, steps: 0, velocity: Vec::new() }
    }
}

impl<F: Float> Optimiser<F> for Sgd<F> {
    fn step(&mut self, lr: f64, params: &mut [F], grads: &[F]) {
        assert_eq!(params.len(), grads.len());
        let first = self.velocity.is_empty();
        self.steps += 1;
        if self.momentum != 0.0 {
            self.velocity.resize(params.len(), F::ZERO);
        }
        let [lr, momentum, decay] = [lr, self.momentum, self.weight_decay].map(F::from_f64);
        let descent = Descent { lr, momentum, decay, nesterov: self.nesterov, first };
        descend(descent, params, grads, &mut self.velocity);
    }

    fn cost(&self, params: usize) -> OpCost {
        match self.momentum == 0.0 {
            true => OpCost::launch(4 * params, 3 * params, size_of::<F>()),
            false => OpCost::launch(6 * params, 5 * params, size_of::<F>()),
        }
    }

    fn state(&mut self) -> OptimiserState<'_, F> {
        OptimiserState { steps: &mut self.steps, vectors: vec![("momentum_buffer", &mut self.velocity)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_steps_by_hand() {
        let mut sgd = Sgd::<f64>::new(0.5, 0.0, false);
        let mut p = [1.0];
        // The velocity is 1, 1.5, 1.75.
        for want in [0.9, 0.75, 0.575] {
            sgd.step(0.1, &mut p, &[1.0]);
            assert!((p[0] - want).abs() < 1e-15, "{} {want}", p[0]);
        }
    }

    #[test]
    fn weight_decay_pulls_towards_zero() {
        let mut p = [2.0];
        Sgd::<f64>::new(0.0, 0.1, false).step(0.5, &mut p, &[0.0]);
        assert_eq!(p[0], 2.0 - 0.5 * 0.1 * 2.0);
    }
}
