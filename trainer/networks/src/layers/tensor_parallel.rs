//! Layers of which each rank of the tensor axis holds a part (M. Shoeybi et al., "Megatron-LM", 2019).
//!
//! ```text
//! column-parallel   a rank has some of the outputs     forward: nothing            backward: dx is summed over the ranks
//! row-parallel      a rank has some of the inputs      forward: y is summed        backward: nothing
//! vocabulary        a rank has some rows of the table  forward: y is summed        backward: nothing
//! ```
//!
//! A column-parallel layer, functions of one number at a time, and a row-parallel layer thus cost one sum forward and one
//! backward. With [sequence parallelism](super::sequence_parallel) each sum becomes a sum that is scattered and a gather.

use super::sequence_parallel::PositionSharing;
use super::{
    Backward, Cast, Forward, Init, Layer, LayerCost, LayerOperation, Linear, MeshAxis, PassKind, PeerCall,
    Peers, Tensor,
};
use allfold_kernels::nn::{EmbeddingShape, Float, LinearShape, add_to};
use std::ops::Range;

/// A fully connected layer of which this rank has some of the outputs.
pub struct ColumnParallelLinear(Part);

/// A fully connected layer of which this rank has some of the inputs. The bias is added once, to the sum.
pub struct RowParallelLinear(Part);

/// A rank's part of a fully connected layer.
struct Part {
    rows: usize,
    shape: LinearShape,
    bias: bool,
    sharing: PositionSharing,
    /// The names and outputs of the layer's weights, where it has several.
    weights: Vec<(&'static str, usize)>,
}

impl Part {
    fn weights(&self) -> usize {
        self.shape.inputs * self.shape.outputs
    }

    /// The layer as it would be on one rank.
    fn alone(&self) -> Linear {
        let init = Init::Constant(0.0);
        let shape = (self.shape.inputs, self.shape.outputs);
        let alone = Linear::rows(self.rows, shape, init, self.bias.then_some(init));
        if self.weights.is_empty() { alone } else { alone.in_unlike_parts(self.weights.clone()) }
    }

    fn cost<F: Float>(&self, n: usize) -> LayerCost {
        Layer::<F>::cost(&self.alone(), n)
    }

    fn backward_params<F: Float>(&self, n: usize, x: &[F], dy: &[F], grads: &mut [F]) {
        let (dw, db) = grads.split_at_mut(self.weights());
        self.shape.backward_params(n * self.rows, x, dy, dw, db);
    }
}

impl ColumnParallelLinear {
    /// The layer with this rank's `outputs` outputs, for `rows` rows per sample.
    pub fn new(rows: usize, (inputs, outputs): (usize, usize), bias: bool) -> ColumnParallelLinear {
        let shape = LinearShape { inputs, outputs };
        ColumnParallelLinear(Part { rows, shape, bias, sharing: PositionSharing(1), weights: Vec::new() })
    }

    /// The layer, which has no bias, with several weights of these names and numbers of this rank's outputs.
    pub fn in_unlike_parts(mut self, weights: Vec<(&'static str, usize)>) -> ColumnParallelLinear {
        self.0.weights = weights;
        self
    }

    /// The layer with an input whose rows `ranks` ranks share evenly.
    pub fn sharing_positions(mut self, ranks: usize) -> ColumnParallelLinear {
        self.0.sharing = PositionSharing(ranks);
        self
    }
}

impl<F: Float> Layer<F> for ColumnParallelLinear {
    fn inputs(&self) -> usize {
        self.0.sharing.own(self.0.rows) * self.0.shape.inputs
    }

    fn outputs(&self) -> usize {
        self.0.rows * self.0.shape.outputs
    }

    fn axis(&self) -> Option<MeshAxis> {
        Some(MeshAxis::Tensor)
    }

    fn peer_calls(&self, pass: PassKind, n: usize) -> Vec<PeerCall> {
        let own = n * Layer::<F>::inputs(self);
        match pass {
            PassKind::Forward | PassKind::WeightGrad => self.0.sharing.gather_calls(own),
            PassKind::InputGrad => self.0.sharing.sum_calls(own),
            PassKind::GatherGradient => Vec::new(),
        }
    }

    fn operation(&self) -> LayerOperation {
        let Part { rows, shape, bias, sharing, .. } = self.0;
        let (inputs, outputs, sharers) = (shape.inputs, shape.outputs, sharing.0);
        LayerOperation::ColumnParallel { rows, inputs, outputs, bias, sharers }
    }

    fn needs_output(&self) -> bool {
        false
    }

    fn params(&self) -> Vec<Tensor> {
        Layer::<F>::params(&self.0.alone())
    }

    fn cast(&self) -> Cast {
        Cast::Narrow
    }

    fn forward(&self, pass: Forward<F>) {
        let x = self.0.sharing.gather(pass.n, pass.x, pass.peers);
        let (w, b) = pass.params.split_at(self.0.weights());
        self.0.shape.forward(pass.n * self.0.rows, &x, w, b, pass.y);
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let x = self.0.sharing.gather(pass.n, pass.x, pass.peers);
        self.0.backward_params(pass.n, &x, pass.dy, grads);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let Part { rows, shape, sharing, .. } = &self.0;
        let (n, dy, w) = (pass.n, pass.dy, &pass.params[..self.0.weights()]);
        sharing.sum(n, dx, pass.peers, |dx| shape.backward_input(n * rows, w, dy, dx));
    }

    fn cost(&self, n: usize) -> LayerCost {
        self.0.cost::<F>(n)
    }
}

impl RowParallelLinear {
    /// The layer with this rank's `inputs` inputs, for `rows` rows per sample.
    pub fn new(rows: usize, (inputs, outputs): (usize, usize), bias: bool) -> RowParallelLinear {
        let shape = LinearShape { inputs, outputs };
        RowParallelLinear(Part { rows, shape, bias, sharing: PositionSharing(1), weights: Vec::new() })
    }

    /// The layer with an output whose rows `ranks` ranks share evenly.
    pub fn sharing_positions(mut self, ranks: usize) -> RowParallelLinear {
        self.0.sharing = PositionSharing(ranks);
        self
    }
}

impl<F: Float> Layer<F> for RowParallelLinear {
    fn inputs(&self) -> usize {
        self.0.rows * self.0.shape.inputs
    }

    fn outputs(&self) -> usize {
        self.0.sharing.own(self.0.rows) * self.0.shape.outputs
    }

    fn axis(&self) -> Option<MeshAxis> {
        Some(MeshAxis::Tensor)
    }

    fn peer_calls(&self, pass: PassKind, n: usize) -> Vec<PeerCall> {
        self.0.sharing.calls_of_sum(pass, n * Layer::<F>::outputs(self))
    }

    fn operation(&self) -> LayerOperation {
        let Part { rows, shape, bias, sharing, .. } = self.0;
        let (inputs, outputs, sharers) = (shape.inputs, shape.outputs, sharing.0);
        LayerOperation::RowParallel { rows, inputs, outputs, bias, sharers }
    }

    fn needs_output(&self) -> bool {
        false
    }

    fn gradient_len(&self) -> usize {
        self.0.rows * self.0.shape.outputs
    }

    fn gather_gradient(&self, n: usize, own: &[F], all: &mut [F], peers: &mut dyn Peers<F>) {
        self.0.sharing.gather_into(n, own, all, peers);
    }

    fn params(&self) -> Vec<Tensor> {
        Layer::<F>::params(&self.0.alone())
    }

    fn cast(&self) -> Cast {
        Cast::Narrow
    }

    fn forward(&self, pass: Forward<F>) {
        let Part { rows, shape, sharing, .. } = &self.0;
        let (w, b) = pass.params.split_at(self.0.weights());
        let (n, x) = (pass.n, pass.x);
        sharing.sum(n, pass.y, pass.peers, |y| shape.forward(n * rows, x, w, &[], y));
        if !b.is_empty() {
            pass.y.chunks_exact_mut(b.len()).for_each(|row| add_to(row, b));
        }
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        self.0.backward_params(pass.n, pass.x, pass.dy, grads);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let w = &pass.params[..self.0.weights()];
        self.0.shape.backward_input(pass.n * self.0.rows, w, pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        self.0.cost::<F>(n)
    }
}

/// An embedding of which this rank has some rows of the table.
pub struct VocabParallelEmbedding {
    positions: usize,
    rows: Range<usize>,
    width: usize,
    sharing: PositionSharing,
}

impl VocabParallelEmbedding {
    /// An embedding by these rows of the whole table, for `positions` tokens per sample.
    pub fn new(positions: usize, rows: Range<usize>, width: usize) -> VocabParallelEmbedding {
        VocabParallelEmbedding { positions, rows, width, sharing: PositionSharing(1) }
    }

    /// The embedding with an output whose positions `ranks` ranks share evenly.
    pub fn sharing_positions(self, ranks: usize) -> VocabParallelEmbedding {
        VocabParallelEmbedding { sharing: PositionSharing(ranks), ..self }
    }

    fn shape(&self) -> EmbeddingShape {
        EmbeddingShape { rows: self.rows.len(), width: self.width }
    }

    /// The range of a token's row in this rank's part of the table; `None` if another rank has the row.
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
        self.sharing.own(self.positions) * self.width
    }

    fn axis(&self) -> Option<MeshAxis> {
        Some(MeshAxis::Tensor)
    }

    fn peer_calls(&self, pass: PassKind, n: usize) -> Vec<PeerCall> {
        self.sharing.calls_of_sum(pass, n * Layer::<F>::outputs(self))
    }

    fn operation(&self) -> LayerOperation {
        let VocabParallelEmbedding { positions, rows, width, sharing } = self;
        let (positions, width, sharers) = (*positions, *width, sharing.0);
        LayerOperation::VocabParallel { positions, rows: rows.clone(), width, sharers }
    }

    fn gradient_len(&self) -> usize {
        self.positions * self.width
    }

    fn gather_gradient(&self, n: usize, own: &[F], all: &mut [F], peers: &mut dyn Peers<F>) {
        self.sharing.gather_into(n, own, all, peers);
    }

    fn params(&self) -> Vec<Tensor> {
        vec![Tensor::new("weight", &[self.rows.len(), self.width], Init::Constant(0.0))]
    }

    fn cast(&self) -> Cast {
        Cast::Full
    }

    fn forward(&self, pass: Forward<F>) {
        let Forward { n, x, y, params, peers, .. } = pass;
        self.sharing.sum(n, y, peers, |y| {
            for (&token, y) in x.iter().zip(y.chunks_exact_mut(self.width)) {
                match self.own(token) {
                    Some(row) => y.copy_from_slice(&params[row]),
                    None => y.fill(F::ZERO),
                }
            }
        });
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
