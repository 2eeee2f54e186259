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
    Backward, Cast, Forward, Init, Layer, LayerCost, LayerOperation, LayerTraits, Linear, MeshAxis, PassKind,
    PeerCall, Peers, Tensor,
};
use allfold_kernels::nn::{EmbeddingShape, Float, LinearShape, add_to};
use std::borrow::Cow;
use std::ops::Range;

/// A fully connected layer of which this rank has some of the outputs, or some of the inputs.
pub struct ParallelLinear {
    rows: usize,
    shape: LinearShape,
    /// The bias of a layer of which ranks have some of the inputs is added once, to the sum.
    bias: bool,
    sharing: PositionSharing,
    /// Whether this rank has some of the inputs.
    of_inputs: bool,
    /// The names and outputs of the layer's weights, where it has several.
    weights: Vec<(&'static str, usize)>,
}

impl ParallelLinear {
    /// The layer with this rank's `outputs` outputs, for `rows` rows per sample.
    pub fn of_outputs(rows: usize, (inputs, outputs): (usize, usize), bias: bool) -> ParallelLinear {
        let (shape, sharing) = (LinearShape { inputs, outputs }, PositionSharing(1));
        ParallelLinear { rows, shape, bias, sharing, of_inputs: false, weights: Vec::new() }
    }

    /// The layer with this rank's `inputs` inputs, for `rows` rows per sample.
    pub fn of_inputs(rows: usize, shape: (usize, usize), bias: bool) -> ParallelLinear {
        ParallelLinear { of_inputs: true, ..ParallelLinear::of_outputs(rows, shape, bias) }
    }

    /// The layer, which has no bias, with several weights of these names and numbers of this rank's outputs.
    pub fn in_unlike_parts(self, weights: Vec<(&'static str, usize)>) -> ParallelLinear {
        ParallelLinear { weights, ..self }
    }

    /// The layer with an input, or of some of the inputs an output, whose rows `ranks` ranks share evenly.
    pub fn sharing_positions(self, ranks: usize) -> ParallelLinear {
        ParallelLinear { sharing: PositionSharing(ranks), ..self }
    }

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

    /// The rows of the input and of the output that this rank has.
    fn own_rows(&self) -> (usize, usize) {
        let own = self.sharing.own(self.rows);
        if self.of_inputs { (self.rows, own) } else { (own, self.rows) }
    }
}

impl<F: Float> Layer<F> for ParallelLinear {
    fn inputs(&self) -> usize {
        self.own_rows().0 * self.shape.inputs
    }

    fn outputs(&self) -> usize {
        self.own_rows().1 * self.shape.outputs
    }

    fn traits(&self) -> LayerTraits {
        let axis = Some(MeshAxis::Tensor);
        LayerTraits { axis, cast: Cast::Narrow, free_output: true, ..LayerTraits::default() }
    }

    fn peer_calls(&self, pass: PassKind, n: usize) -> Vec<PeerCall> {
        let own = n * Layer::<F>::inputs(self);
        match pass {
            _ if self.of_inputs => self.sharing.calls_of_sum(pass, n * Layer::<F>::outputs(self)),
            PassKind::Forward | PassKind::WeightGrad => self.sharing.gather_calls(own),
            PassKind::InputGrad => self.sharing.sum_calls(own),
            PassKind::GatherGradient => Vec::new(),
        }
    }

    fn operation(&self) -> LayerOperation {
        let ParallelLinear { rows, shape: LinearShape { inputs, outputs }, bias, sharing, .. } = *self;
        let sharers = sharing.0;
        match self.of_inputs {
            true => LayerOperation::RowParallel { rows, inputs, outputs, bias, sharers },
            false => LayerOperation::ColumnParallel { rows, inputs, outputs, bias, sharers },
        }
    }

    fn gradient_len(&self) -> usize {
        self.rows * self.shape.outputs
    }

    fn gather_gradient(&self, n: usize, own: &[F], all: &mut [F], peers: &mut dyn Peers<F>) {
        self.sharing.gather_into(n, own, all, peers);
    }

    fn params(&self) -> Vec<Tensor> {
        Layer::<F>::params(&self.alone())
    }

    fn forward(&self, pass: Forward<F>) {
        let (n, rows, shape) = (pass.n, pass.n * self.rows, &self.shape);
        let (w, b) = pass.params.split_at(self.weights());
        if !self.of_inputs {
            let x = self.sharing.gather(n, pass.x, pass.peers);
            return shape.forward(rows, &x, w, b, pass.y);
        }
        self.sharing.sum(n, pass.y, pass.peers, |y| shape.forward(rows, pass.x, w, &[], y));
        if !b.is_empty() {
            pass.y.chunks_exact_mut(b.len()).for_each(|row| add_to(row, b));
        }
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let x = match self.of_inputs {
            true => Cow::Borrowed(pass.x),
            false => self.sharing.gather(pass.n, pass.x, pass.peers),
        };
        let (dw, db) = grads.split_at_mut(self.weights());
        self.shape.backward_params(pass.n * self.rows, &x, pass.dy, dw, db);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let (rows, dy, w) = (pass.n * self.rows, pass.dy, &pass.params[..self.weights()]);
        if self.of_inputs {
            return self.shape.backward_input(rows, w, dy, dx);
        }
        self.sharing.sum(pass.n, dx, pass.peers, |dx| self.shape.backward_input(rows, w, dy, dx));
    }

    fn cost(&self, n: usize) -> LayerCost {
        Layer::<F>::cost(&self.alone(), n)
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

    fn traits(&self) -> LayerTraits {
        LayerTraits { axis: Some(MeshAxis::Tensor), cast: Cast::Full, ..LayerTraits::default() }
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
