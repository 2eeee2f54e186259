//! The Gaussian error linear unit.

use super::{Backward, Forward, Layer, LayerCost, Operation};
use allfold_kernels::nn::{Float, Gelu as Kernel};

/// The unit over so many numbers per sample.
pub struct Gelu(usize);

impl Gelu {
    /// Over `outputs` numbers per sample.
    pub fn new(outputs: usize) -> Gelu {
        Gelu(outputs)
    }
}

impl<F: Float> Layer<F> for Gelu {
    fn inputs(&self) -> usize {
        self.0
    }

    fn outputs(&self) -> usize {
        self.0
    }

    fn operation(&self) -> Operation {
        Operation::Gelu
    }

    fn forward(&self, pass: Forward<F>) {
        Kernel::forward(pass.x, pass.y);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        Kernel::backward(pass.x, pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        LayerCost {
            forward: Kernel::forward_cost::<F>(n * self.0),
            evaluate: Kernel::forward_cost::<F>(n * self.0),
            input: Kernel::backward_cost::<F>(n * self.0),
            ..LayerCost::default()
        }
    }
}
