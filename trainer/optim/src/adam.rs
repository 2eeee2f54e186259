//! Adam (D. P. Kingma and J. Ba, ICLR 2015) and AdamW (I. Loshchilov and F. Hutter, ICLR 2019), as PyTorch computes them.
//!
//! ```text
//! adam:   g = grad + weight_decay p             adamw:   g = grad,  p = p (1 - lr weight_decay)
//! m = m + (1 - beta1) (g - m)                   v = beta2 v + (1 - beta2) g^2
//! p = p - lr / (1 - beta1^t)  m / (sqrt(v) / sqrt(1 - beta2^t) + eps)          at step t = 1, 2, ...
//! ```

use super::{Optimiser, OptimiserState};
use allfold_kernels::nn::{self, Float, Moments, OpCost};

/// The optimiser, with two moments per parameter element.
pub struct Adam<F> {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    decoupled: bool,
    steps: u64,
    /// The moments m of the gradient and v of its square. Empty before the first step.
    moments: (Vec<F>, Vec<F>),
}

impl<F: Float> Adam<F> {
    /// Adam; with `decoupled` weight decay it is AdamW.
    pub fn new((beta1, beta2): (f64, f64), eps: f64, weight_decay: f64, decoupled: bool) -> Adam<F> {
        Adam { beta1, beta2, eps, weight_decay, decoupled, steps: 0, moments: (Vec::new(), Vec::new()) }
    }
}

/// The bias correction of a moment that began at zero: 1 - beta^t.
fn correction(beta: f64, steps: u64) -> f64 {
    1.0 - beta.powi(i32::try_from(steps).unwrap_or(i32::MAX))
}

impl<F: Float> Optimiser<F> for Adam<F> {
    fn step(&mut self, lr: f64, params: &mut [F], grads: &[F]) {
        assert_eq!(params.len(), grads.len());
        self.steps += 1;
        let (m, v) = &mut self.moments;
        m.resize(params.len(), F::ZERO);
        v.resize(params.len(), F::ZERO);
        let added = if self.decoupled { 0.0 } else { self.weight_decay };
        let kept = if self.decoupled { 1.0 - lr * self.weight_decay } else { 1.0 };
        let rate = lr / correction(self.beta1, self.steps);
        let root = correction(self.beta2, self.steps).sqrt();
        let [decay, kept, rate, root, eps] = [added, kept, rate, root, self.eps].map(F::from_f64);
        let [from_gradient, beta2, from_square] =
            [1.0 - self.beta1, self.beta2, 1.0 - self.beta2].map(F::from_f64);
        nn::adam(
            Moments { decay, kept, rate, root, eps, from_gradient, beta2, from_square },
            params,
            grads,
            m,
            v,
        );
    }

    fn cost(&self, params: usize) -> OpCost {
        OpCost::launch(16 * params, 7 * params, size_of::<F>())
    }

    fn state(&mut self) -> OptimiserState<'_, F> {
        let (m, v) = &mut self.moments;
        OptimiserState { steps: &mut self.steps, vectors: vec![("exp_avg", m), ("exp_avg_sq", v)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For a gradient of any size the first step has length lr, because the two corrections cancel.
    #[test]
    fn the_first_step_is_the_learning_rate_long() {
        for grad in [1e-3, 1.0, 1e3] {
            let mut p = [2.0];
            Adam::<f64>::new((0.9, 0.999), 1e-12, 0.0, false).step(0.01, &mut p, &[grad]);
            assert!((p[0] - 1.99).abs() < 1e-10, "{}", p[0]);
        }
    }

    #[test]
    fn decoupled_decay_does_not_pass_through_the_moments() {
        let mut p = [2.0];
        let mut adam = Adam::<f64>::new((0.9, 0.999), 1e-8, 0.1, true);
        adam.step(0.5, &mut p, &[0.0]);
        assert_eq!(p[0], 2.0 * (1.0 - 0.05));
        assert!(adam.state().vectors.iter().all(|(_, values)| values[..] == [0.0]));
    }
}
