//! The function between an expert's two linear layers.

use crate::layers::{Backward, Cast, Forward, Layer, LayerCost, LayerOperation, LayerTraits};
use allfold_kernels::nn::{Float, GeluKernel};

/// The Gaussian error linear unit over the experts' slots; the numbers at the end of a sample pass through.
pub struct ExpertGelu {
    slots: usize,
    tail: usize,
}

impl ExpertGelu {
    /// The layer over `slots` numbers per sample, before `tail` numbers that pass through.
    pub fn new(slots: usize, tail: usize) -> ExpertGelu {
        ExpertGelu { slots, tail }
    }
}

impl<F: Float> Layer<F> for ExpertGelu {
    fn inputs(&self) -> usize {
        self.slots + self.tail
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::ExpertGelu { slots: self.slots, tail: self.tail }
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { cast: Cast::Full, free_output: true, ..LayerTraits::default() }
    }

    fn forward(&self, pass: Forward<F>) {
        let ((x, end), (y, rest)) =
            (pass.x.split_at(pass.n * self.slots), pass.y.split_at_mut(pass.n * self.slots));
        GeluKernel::forward(x, y);
        rest.copy_from_slice(end);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let at = pass.n * self.slots;
        let ((dy, end), (dx, rest)) = (pass.dy.split_at(at), dx.split_at_mut(at));
        GeluKernel::backward(&pass.x[..at], dy, dx);
        rest.copy_from_slice(end);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let (forward, input) =
            (GeluKernel::forward_cost::<F>(n * self.slots), GeluKernel::backward_cost::<F>(n * self.slots));
        LayerCost { forward, evaluate: forward, input, ..LayerCost::default() }
    }
}
