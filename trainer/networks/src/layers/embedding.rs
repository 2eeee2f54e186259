//! Tables: a row for each token, and a row for each position.

use super::Cast;
use super::{Backward, Forward, Init, Layer, LayerCost, LayerOperation, LayerTraits, Tensor};
use allfold_kernels::nn::{self, EmbeddingShape as Shape, Float};

/// A table that gives a row for each of `positions` tokens of a sample.
pub struct Embedding {
    positions: usize,
    shape: Shape,
    init: Init,
}

/// Adds to each position of a sample the position's own row of a table.
pub struct Positions {
    positions: usize,
    rows: usize,
    width: usize,
    /// The number of rows, from the first on, that are added to as many positions in turn.
    added: usize,
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
        Positions { positions, rows: positions, width, added: positions, init }
    }

    /// This table with more rows than samples have positions.
    pub fn of(self, rows: usize) -> Positions {
        Positions { rows, ..self }
    }

    /// Adds to each position the first row of a table of two: that of the first segment of a text, as in BERT.
    pub fn first_segment(positions: usize, width: usize, init: Init) -> Positions {
        Positions { positions, rows: 2, width, added: 1, init }
    }

    /// The number of elements of the rows that are added.
    fn stretch(&self) -> usize {
        self.added * self.width
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

    fn traits(&self) -> LayerTraits {
        LayerTraits { cast: Cast::Full, ..LayerTraits::default() }
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

    fn operation(&self) -> LayerOperation {
        match self.rows == self.positions && self.added == self.positions {
            true => LayerOperation::Positions { positions: self.positions, width: self.width },
            false => LayerOperation::Own,
        }
    }

    fn params(&self) -> Vec<Tensor> {
        vec![Tensor::new("weight", &[self.rows, self.width], self.init)]
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { identity_backward: true, ..LayerTraits::default() }
    }

    fn forward(&self, pass: Forward<F>) {
        add_rows(&pass.params[..self.stretch()], pass.x, pass.y);
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        sum_rows(pass.dy, self.stretch(), grads);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let once = nn::add_cost::<F>(n * self.positions * self.width);
        LayerCost { forward: once, evaluate: once, params: once, ..LayerCost::default() }
    }
}

/// Adds `rows` to each stretch of `x` of that length.
fn add_rows<F: Float>(rows: &[F], x: &[F], y: &mut [F]) {
    for (x, y) in x.chunks_exact(rows.len()).zip(y.chunks_exact_mut(rows.len())) {
        nn::add(x, rows, y);
    }
}

/// The sum of the stretches of `dy` of this length, in the first elements of `grads`; the others become 0.
fn sum_rows<F: Float>(dy: &[F], length: usize, grads: &mut [F]) {
    grads.fill(F::ZERO);
    dy.chunks_exact(length).for_each(|dy| nn::add_to(&mut grads[..length], dy));
}
