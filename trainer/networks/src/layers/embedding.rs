//! Tables: a row for each token, and a row for each position.

use super::Cast;
use super::{Backward, Forward, Init, Layer, LayerCost, LayerOperation, Tensor};
use allfold_kernels::nn::{self, EmbeddingShape as Shape, Float, OpCost};

/// A table that gives a row for each of `positions` tokens of a sample.
pub struct Embedding {
    positions: usize,
    shape: Shape,
    init: Init,
}

/// Adds to each position of a sample the position's own row of a table.
pub struct Positions {
    positions: usize,
    width: usize,
    init: Init,
}

impl Embedding {
    /// A table of this shape, looked up for `positions` tokens per sample.
    pub fn new(positions: usize, shape: Shape, init: Init) -> Embedding {
        Embedding { positions, shape, init }
    }
}

impl Positions {
    /// A table of `positions` rows of `width` numbers.
    pub fn new(positions: usize, width: usize, init: Init) -> Positions {
        Positions { positions, width, init }
    }
}

impl<F: Float> Layer<F> for Embedding {
    fn inputs(&self) -> usize {
        self.positions
    }

    fn outputs(&self) -> usize {
        self.positions * self.shape.width
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::Embedding {
            positions: self.positions,
            rows: self.shape.rows,
            width: self.shape.width,
        }
    }

    fn params(&self) -> Vec<Tensor> {
        vec![Tensor::new("weight", &[self.shape.rows, self.shape.width], self.init)]
    }

    fn cast(&self) -> Cast {
        Cast::Full
    }

    fn forward(&self, pass: Forward<F>) {
        self.shape.forward(pass.x, pass.params, pass.y);
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        self.shape.backward_params(pass.x, pass.dy, grads);
    }

    /// Tokens have no gradient.
    fn backward_input(&self, _pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        dx.fill(F::ZERO);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let [forward, params] = self.shape.cost::<F>(n * self.positions);
        LayerCost { forward, evaluate: forward, params, ..LayerCost::default() }
    }
}

impl<F: Float> Layer<F> for Positions {
    fn inputs(&self) -> usize {
        self.positions * self.width
    }

    fn outputs(&self) -> usize {
        self.positions * self.width
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::Positions { positions: self.positions, width: self.width }
    }

    fn params(&self) -> Vec<Tensor> {
        vec![Tensor::new("weight", &[self.positions, self.width], self.init)]
    }

    fn identity_backward(&self) -> bool {
        true
    }

    fn forward(&self, pass: Forward<F>) {
        let width = pass.params.len();
        for (x, y) in pass.x.chunks_exact(width).zip(pass.y.chunks_exact_mut(width)) {
            nn::add(x, pass.params, y);
        }
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        grads.fill(F::ZERO);
        pass.dy.chunks_exact(grads.len()).for_each(|dy| nn::add_to(grads, dy));
    }

    fn cost(&self, n: usize) -> LayerCost {
        let once = nn::add_cost::<F>(n * self.positions * self.width);
        LayerCost {
            sums: OpCost::default(),
            forward: once,
            evaluate: once,
            params: once,
            input: OpCost::default(),
        }
    }
}
