//! Layers of which each rank of the tensor axis holds a part (M. Shoeybi et al., "Megatron-LM", 2019).
//!
//! ```text
//! column-parallel   a rank has some of the outputs     forward: nothing            backward: dx is summed over the ranks
//! row-parallel      a rank has some of the inputs      forward: y is summed        backward: nothing
//! vocabulary        a rank has some rows of the table  forward: y is summed        backward: nothing
//! ```
//!
//! A column-parallel layer, functions of one number at a time, and a row-parallel layer thus cost one sum forward and one
//! backward.

use super::{Backward, Cast, Forward, Init, Layer, LayerCost, Linear, MeshAxis, Tensor};
use allfold_kernels::nn::{EmbeddingShape, Float, LinearShape, add_to};
use std::ops::Range;

/// A fully connected layer of which this rank has some of the outputs.
pub struct ColumnParallelLinear(Linear);

impl ColumnParallelLinear {
    /// `outputs` of this rank, for `rows` rows per sample.
    pub fn new(rows: usize, (inputs, outputs): (usize, usize), bias: bool) -> ColumnParallelLinear {
        let init = Init::Constant(0.0);
        ColumnParallelLinear(Linear::rows(rows, (inputs, outputs), init, bias.then_some(init)))
    }

    fn inner<F: Float>(&self) -> &dyn Layer<F> {
        &self.0
    }
}

impl<F: Float> Layer<F> for ColumnParallelLinear {
    fn inputs(&self) -> usize {
        self.inner::<F>().inputs()
    }

    fn outputs(&self) -> usize {
        self.inner::<F>().outputs()
    }

    fn axis(&self) -> Option<MeshAxis> {
        Some(MeshAxis::Tensor)
    }

    fn needs_output(&self) -> bool {
        false
    }

    fn params(&self) -> Vec<Tensor> {
        self.inner::<F>().params()
    }

    fn cast(&self) -> Cast {
        Cast::Narrow
    }

    fn forward(&self, pass: Forward<F>) {
        self.inner().forward(pass);
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        self.inner().backward_params(pass, grads);
    }

    fn backward_input(&self, pass: &mut Backward<F>, grads: &[F], dx: &mut [F]) {
        self.inner().backward_input(pass, grads, dx);
        pass.peers.sum(dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        self.inner::<F>().cost(n)
    }
}

/// A fully connected layer of which this rank has some of the inputs. The bias is added once, to the sum.
pub struct RowParallelLinear {
    rows: usize,
    shape: LinearShape,
    bias: bool,
}

impl RowParallelLinear {
    /// `inputs` of this rank, for `rows` rows per sample.
    pub fn new(rows: usize, (inputs, outputs): (usize, usize), bias: bool) -> RowParallelLinear {
        RowParallelLinear { rows, shape: LinearShape { inputs, outputs }, bias }
    }

    fn weights(&self) -> usize {
        self.shape.inputs * self.shape.outputs
    }

    fn whole(&self) -> Linear {
        let init = Init::Constant(0.0);
        let shape = (self.shape.inputs, self.shape.outputs);
        Linear::rows(self.rows, shape, init, self.bias.then_some(init))
    }
}

impl<F: Float> Layer<F> for RowParallelLinear {
    fn inputs(&self) -> usize {
        self.rows * self.shape.inputs
    }

    fn outputs(&self) -> usize {
        self.rows * self.shape.outputs
    }

    fn axis(&self) -> Option<MeshAxis> {
        Some(MeshAxis::Tensor)
    }

    fn needs_output(&self) -> bool {
        false
    }

    fn params(&self) -> Vec<Tensor> {
        Layer::<F>::params(&self.whole())
    }

    fn cast(&self) -> Cast {
        Cast::Narrow
    }

    fn forward(&self, pass: Forward<F>) {
        let (w, b) = pass.params.split_at(self.weights());
        self.shape.forward(pass.n * self.rows, pass.x, w, &[], pass.y);
        pass.peers.sum(pass.y);
        if !b.is_empty() {
            pass.y.chunks_exact_mut(b.len()).for_each(|row| add_to(row, b));
        }
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let (dw, db) = grads.split_at_mut(self.weights());
        self.shape.backward_params(pass.n * self.rows, pass.x, pass.dy, dw, db);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        self.shape.backward_input(pass.n * self.rows, &pass.params[..self.weights()], pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        Layer::<F>::cost(&self.whole(), n)
    }
}

/// An embedding of which this rank has some rows of the table.
pub struct VocabParallelEmbedding {
    positions: usize,
    rows: Range<usize>,
    width: usize,
}

impl VocabParallelEmbedding {
    /// These rows of the whole table, looked up for `positions` tokens per sample.
    pub fn new(positions: usize, rows: Range<usize>, width: usize) -> VocabParallelEmbedding {
        VocabParallelEmbedding { positions, rows, width }
    }

    fn shape(&self) -> EmbeddingShape {
        EmbeddingShape { rows: self.rows.len(), width: self.width }
    }

    /// The place of a token's row in this rank's part of the table, if it is there.
    fn own<F: Float>(&self, token: F) -> Option<Range<usize>> {
        let row =
            (token.to_f64() as usize).checked_sub(self.rows.start).filter(|row| *row < self.rows.len())?;
        Some(row * self.width..(row + 1) * self.width)
    }
}

impl<F: Float> Layer<F> for VocabParallelEmbedding {
    fn inputs(&self) -> usize {
        self.positions
    }

    fn outputs(&self) -> usize {
        self.positions * self.width
    }

    fn axis(&self) -> Option<MeshAxis> {
        Some(MeshAxis::Tensor)
    }

    fn params(&self) -> Vec<Tensor> {
        vec![Tensor::new("weight", &[self.rows.len(), self.width], Init::Constant(0.0))]
    }

    fn cast(&self) -> Cast {
        Cast::Full
    }

    fn forward(&self, pass: Forward<F>) {
        for (&token, y) in pass.x.iter().zip(pass.y.chunks_exact_mut(self.width)) {
            match self.own(token) {
                Some(row) => y.copy_from_slice(&pass.params[row]),
                None => y.fill(F::ZERO),
            }
        }
        pass.peers.sum(pass.y);
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        grads.fill(F::ZERO);
        for (&token, dy) in pass.x.iter().zip(pass.dy.chunks_exact(self.width)) {
            if let Some(row) = self.own(token) {
                add_to(&mut grads[row], dy);
            }
        }
    }

    /// Tokens have no gradient.
    fn backward_input(&self, _pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        dx.fill(F::ZERO);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let [forward, params] = self.shape().cost::<F>(n * self.positions);
        LayerCost { forward, evaluate: forward, params, ..LayerCost::default() }
    }
}
