//! Dropout: in training a share of the numbers becomes 0, and the rest grows to make up for it.

use super::{Backward, Forward, Layer, LayerCost, LayerOperation};
use allfold_kernels::nn::{DropoutKernel as Kernel, DropoutStream, Float};

/// Dropout over this many numbers per sample. Its random draws are a function of seed, step, micro-batch, rank and layer.
pub struct Dropout {
    share: f64,
    outputs: usize,
}

impl Dropout {
    /// Zeros this share of `outputs` numbers per sample; at least 0 and less than 1.
    pub fn new(share: f64, outputs: usize) -> Dropout {
        Dropout { share, outputs }
    }
}

impl<F: Float> Layer<F> for Dropout {
    fn inputs(&self) -> usize {
        self.outputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::Dropout { share: self.share }
    }

    fn needs_output(&self) -> bool {
        false
    }

    /// The stream, to draw again from.
    fn saved(&self, _n: usize) -> (usize, usize) {
        (0, 5)
    }

    fn forward(&self, pass: Forward<F>) {
        if !pass.train {
            return pass.y.copy_from_slice(pass.x);
        }
        let DropoutStream { seed, place: [a, b, c] } = pass.stream;
        pass.saved.places.copy_from_slice(&[seed as u32, (seed >> 32) as u32, a, b, c]);
        Kernel { share: self.share }.apply(pass.stream, pass.x, pass.y);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        if let [low, high, a, b, c] = pass.saved.places[..] {
            let stream = DropoutStream { seed: u64::from(high) << 32 | u64::from(low), place: [a, b, c] };
            Kernel { share: self.share }.apply(stream, pass.dy, dx);
        }
    }

    fn cost(&self, n: usize) -> LayerCost {
        let once = Kernel::cost::<F>(n * self.outputs);
        LayerCost { forward: once, evaluate: once, input: once, ..LayerCost::default() }
    }
}
