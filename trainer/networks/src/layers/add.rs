//! The sum of two branches.

use super::{Forward, Layer, LayerCost, LayerOperation, LayerTraits};
use allfold_kernels::nn::{self, Float};

/// Adds two activations of this many numbers per sample.
pub struct Add(usize);

impl Add {
    /// An addition over `outputs` numbers per sample.
    pub fn new(outputs: usize) -> Add {
        Add(outputs)
    }
}

impl<F: Float> Layer<F> for Add {
    fn inputs(&self) -> usize {
        self.0
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::Add
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { in_place: true, free_output: true, identity_backward: true, ..LayerTraits::default() }
    }

    fn forward(&self, pass: Forward<F>) {
        nn::add(pass.x, pass.other, pass.y);
    }

    fn forward_in_place(&self, other: &[F], y: &mut [F]) {
        nn::add_to(y, other);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let once = nn::add_cost::<F>(n * self.0);
        LayerCost { forward: once, evaluate: once, ..LayerCost::default() }
    }
}
