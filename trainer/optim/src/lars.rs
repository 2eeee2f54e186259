//! LARS: momentum with a rate for each parameter (Y. You, I. Gitman and B. Ginsburg, arXiv:1708.03888, 2017).
//!
//! ```text
//! of each parameter (a weight, a bias):
//! ratio = trust |p| / (|grad| + weight_decay |p|)          1 where |p| or |grad| is 0
//! v = momentum v + lr ratio (grad + weight_decay p)
//! p = p - v
//! ```
//!
//! With many ranks the batch is large and so is the learning rate; the ratio keeps a step small relative to each parameter.
//! Parameters of one dimension (biases, batch norms) take part in neither the ratio nor the decay, as is customary.

use super::{Optimiser, OptimiserState};
use allfold_kernels::nn::{Float, OpCost, norm};
use allfold_networks::ParamSpec;
use std::ops::Range;

/// LARS, with one velocity per parameter element.
pub struct Lars<F> {
    momentum: f64,
    weight_decay: f64,
    trust: f64,
    /// The range of each parameter, and whether it has a rate of its own.
    parts: Vec<(Range<usize>, bool)>,
    steps: u64,
    velocity: Vec<F>,
    /// The squares of the norms of whole parameters and of their gradients, if this optimiser has only parts of them; else empty.
    whole: Vec<[f64; 2]>,
}

impl<F: Float> Lars<F> {
    /// The optimiser for parameters with the layout `places`.
    pub fn new(momentum: f64, weight_decay: f64, trust: f64, places: &[ParamSpec]) -> Lars<F> {
        let parts = places.iter().map(|place| (place.range.clone(), place.shape.len() > 1)).collect();
        Lars { momentum, weight_decay, trust, parts, steps: 0, velocity: Vec::new(), whole: Vec::new() }
    }

    /// The share of the learning rate that a parameter gets.
    fn ratio(&self, part: usize, params: &[F], grads: &[F]) -> f64 {
        let [p, g] = match self.whole.get(part) {
            Some(squares) => squares.map(f64::sqrt),
            None => [norm(params), norm(grads)],
        };
        if p == 0.0 || g == 0.0 { 1.0 } else { self.trust * p / (g + self.weight_decay * p) }
    }
}

impl<F: Float> Optimiser<F> for Lars<F> {
    fn step(&mut self, lr: f64, params: &mut [F], grads: &[F]) {
        assert_eq!(params.len(), grads.len());
        self.steps += 1;
        self.velocity.resize(params.len(), F::ZERO);
        let momentum = F::from_f64(self.momentum);
        for (part, (range, own)) in self.parts.iter().enumerate() {
            let (grads, params) = (&grads[range.clone()], &mut params[range.clone()]);
            let (ratio, decay) =
                if *own { (self.ratio(part, params, grads), self.weight_decay) } else { (1.0, 0.0) };
            let (rate, decay) = (F::from_f64(lr * ratio), F::from_f64(decay));
            for ((p, &grad), v) in params.iter_mut().zip(grads).zip(&mut self.velocity[range.clone()]) {
                *v = momentum * *v + rate * (grad + decay * *p);
                *p = *p - *v;
            }
        }
    }

    fn needs_norms(&self) -> bool {
        true
    }

    fn squares(&self, params: &[F], grads: &[F]) -> Vec<[f64; 2]> {
        let square = |values: &[F], range: &Range<usize>| norm(&values[range.clone()]).powi(2);
        self.parts.iter().map(|(range, _)| [square(params, range), square(grads, range)]).collect()
    }

    fn set_squares(&mut self, squares: &[[f64; 2]]) {
        self.whole = squares.to_vec();
    }

    fn cost(&self, params: usize) -> OpCost {
        OpCost::launch(10 * params, 7 * params, size_of::<F>())
    }

    fn state(&mut self) -> OptimiserState<'_, F> {
        OptimiserState { steps: &mut self.steps, vectors: vec![("momentum_buffer", &mut self.velocity)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_networks::layers::Init;

    fn place(shape: &[usize], range: Range<usize>) -> ParamSpec {
        ParamSpec { name: String::new(), shape: shape.to_vec(), range, init: Init::Constant(0.0) }
    }

    #[test]
    fn two_steps_by_hand() {
        let mut lars = Lars::<f64>::new(0.5, 0.1, 0.01, &[place(&[2, 1], 0..2), place(&[1], 2..3)]);
        let mut p = [3.0, 4.0, 2.0];
        // |p| = 5, |g| = 10: ratio 0.05 / 10.5. The bias moves by lr g.
        lars.step(1.0, &mut p, &[6.0, 8.0, 1.0]);
        let rate = 0.05 / 10.5;
        let want = [3.0 - rate * 6.3, 4.0 - rate * 8.4, 1.0];
        assert!(p.iter().zip(want).all(|(p, want)| (p - want).abs() < 1e-15), "{p:?}");
        // Without a gradient the ratio is 1, and half of the velocity remains.
        lars.step(1.0, &mut p, &[0.0, 0.0, 0.0]);
        assert!((p[2] - 0.5).abs() < 1e-15 && (p[0] - (0.9 * want[0] - 0.5 * rate * 6.3)).abs() < 1e-15);
    }

    /// LARS scales the step by the weights: its length does not depend on the gradient's scale.
    #[test]
    fn the_gradients_scale_does_not_matter() {
        let step = |scale: f64| {
            let mut p = [3.0, 4.0];
            Lars::<f64>::new(0.9, 0.0, 0.01, &[place(&[1, 2], 0..2)]).step(
                0.5,
                &mut p,
                &[0.6 * scale, 0.8 * scale],
            );
            p
        };
        assert!(step(1.0).iter().zip(step(1e6)).all(|(a, b)| (a - b).abs() < 1e-12));
    }

    /// Two halves of a parameter move as the whole does, by the sums of their squares.
    #[test]
    fn parts_of_a_parameter_move_by_the_norms_of_the_whole() {
        let new = |range| Lars::<f64>::new(0.5, 0.1, 0.01, &[place(&[2, 2], range)]);
        let (mut whole, mut halves) = (new(0..4), [new(0..2), new(0..2)]);
        let (mut p, grads) = ([3.0, -4.0, 1.0, 2.0], [6.0, 8.0, -1.0, 0.5]);
        let mut parts = p;
        for _ in 0..3 {
            whole.step(0.3, &mut p, &grads);
            let own = |at: usize| 2 * at..2 * at + 2;
            let squares = |at: usize| halves[at].squares(&parts[own(at)], &grads[own(at)])[0];
            let [a, b] = [squares(0), squares(1)];
            for (at, half) in halves.iter_mut().enumerate() {
                half.set_squares(&[[a[0] + b[0], a[1] + b[1]]]);
                half.step(0.3, &mut parts[own(at)], &grads[own(at)]);
            }
        }
        assert!(p.iter().zip(parts).all(|(p, part)| (p - part).abs() < 1e-14), "{p:?} {parts:?}");
    }
}
