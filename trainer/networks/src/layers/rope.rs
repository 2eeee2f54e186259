//! Rotary positions: rotates the queries and keys of each position by its angles, in place.

use super::{Forward, Layer, LayerCost, LayerOperation, LayerTraits};
use allfold_kernels::nn::{Float, RopeShape as Shape};

/// A rotation of the first heads of each row, whose other numbers stay.
pub struct Rope {
    shape: Shape,
    angles: Vec<[f64; 2]>,
}

impl Rope {
    /// The rotation of this shape.
    pub fn new(shape: Shape) -> Rope {
        Rope { angles: shape.angles(), shape }
    }
}

impl<F: Float> Layer<F> for Rope {
    fn inputs(&self) -> usize {
        self.shape.positions * self.shape.width
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::Rope(self.shape)
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { in_place: true, free_output: true, ..LayerTraits::default() }
    }

    fn forward(&self, pass: Forward<F>) {
        pass.y.copy_from_slice(pass.x);
        self.shape.rotate(&self.angles, false, pass.y);
    }

    fn forward_in_place(&self, _other: &[F], y: &mut [F]) {
        self.shape.rotate(&self.angles, false, y);
    }

    fn backward_in_place(&self, _y: &[F], dx: &mut [F]) {
        self.shape.rotate(&self.angles, true, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let once = self.shape.cost::<F>(n);
        LayerCost { forward: once, evaluate: once, input: once, ..LayerCost::default() }
    }
}
