//! A linear layer with weights for each expert.

use crate::layers::{Backward, Cast, Forward, Init, Layer, LayerCost, LayerOperation, LayerTraits, Tensor};
use allfold_kernels::nn::{Float, LinearShape, OpCost};
use std::ops::Range;

/// Fully connected, with weights of its own for each expert: over the slots of all experts that the rank has. Slots without a token
/// hold zeros and are computed like other slots, as in GShard, so that the cost depends on the shape alone.
pub struct ExpertLinear {
    shape: LinearShape,
    experts: usize,
    ranks: usize,
    /// Slots of a sample for each expert.
    capacity: usize,
    /// The numbers at the end of a sample that pass through.
    tail: usize,
    init: Init,
}

impl ExpertLinear {
    /// A layer from `inputs` to `outputs` numbers per slot, for the slots of `experts` experts with `capacity` slots each per
    /// sample, before `tail` numbers that pass through. Weights are drawn by `init`; biases begin with 0.
    pub fn new(
        (inputs, outputs): (usize, usize),
        (experts, capacity): (usize, usize),
        tail: usize,
        init: Init,
    ) -> ExpertLinear {
        ExpertLinear { shape: LinearShape { inputs, outputs }, experts, ranks: 1, capacity, tail, init }
    }

    /// The number of experts of this rank.
    fn own(&self) -> usize {
        self.experts / self.ranks
    }

    /// The number of slots of one expert, for `n` samples on each rank.
    fn rows(&self, n: usize) -> usize {
        n * self.ranks * self.capacity
    }

    /// The elements of expert `e` among the experts' inputs, outputs, weights and biases.
    fn places(&self, e: usize, n: usize) -> [Range<usize>; 4] {
        let LinearShape { inputs, outputs } = self.shape;
        let [x, y, w] = [self.rows(n) * inputs, self.rows(n) * outputs, inputs * outputs]
            .map(|len| e * len..(e + 1) * len);
        let biases = self.own() * inputs * outputs + e * outputs;
        [x, y, w, biases..biases + outputs]
    }

    /// Where the slots of `n` samples end in the layer's input, and in its output.
    fn ends(&self, n: usize) -> (usize, usize) {
        let slots = self.own() * self.rows(n);
        (slots * self.shape.inputs, slots * self.shape.outputs)
    }

    fn times_own(&self, cost: OpCost) -> OpCost {
        (0..self.own()).map(|_| cost).sum()
    }
}

impl<F: Float> Layer<F> for ExpertLinear {
    fn inputs(&self) -> usize {
        self.experts * self.capacity * self.shape.inputs + self.tail
    }

    fn outputs(&self) -> usize {
        self.experts * self.capacity * self.shape.outputs + self.tail
    }

    fn params(&self) -> Vec<Tensor> {
        let (LinearShape { inputs, outputs }, own) = (self.shape, self.own());
        let bias = Tensor::new("bias", &[own, outputs], Init::Constant(0.0));
        vec![Tensor::new("weight", &[own, outputs, inputs], self.init), bias]
    }

    fn operation(&self) -> LayerOperation {
        let ExpertLinear { shape: LinearShape { inputs, outputs }, experts, ranks, capacity, tail, .. } =
            *self;
        LayerOperation::ExpertLinear { inputs, outputs, experts, ranks, capacity, tail }
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits {
            cast: Cast::Full,
            free_output: true,
            experts: self.experts,
            has_some_experts: self.ranks > 1,
            ..LayerTraits::default()
        }
    }

    fn sharing_experts(&self, ranks: usize) -> Option<Box<dyn Layer<F>>> {
        Some(Box::new(ExpertLinear { ranks, ..*self }))
    }

    fn forward(&self, pass: Forward<F>) {
        let (x, y) = self.ends(pass.n);
        pass.y[y..].copy_from_slice(&pass.x[x..]);
        for e in 0..self.own() {
            let [x, y, w, b] = self.places(e, pass.n);
            let (w, b) = (&pass.params[w], &pass.params[b]);
            self.shape.forward(self.rows(pass.n), &pass.x[x], w, b, &mut pass.y[y]);
        }
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let (weights, biases) = grads.split_at_mut(self.own() * self.shape.inputs * self.shape.outputs);
        let (start, rows) = (weights.len(), self.rows(pass.n));
        for e in 0..self.own() {
            let [x, y, w, b] = self.places(e, pass.n);
            let db = &mut biases[b.start - start..b.end - start];
            self.shape.backward_params(rows, &pass.x[x], &pass.dy[y], &mut weights[w], db);
        }
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let (x, y) = self.ends(pass.n);
        dx[x..].copy_from_slice(&pass.dy[y..]);
        for e in 0..self.own() {
            let [x, y, w, _] = self.places(e, pass.n);
            self.shape.backward_input(self.rows(pass.n), &pass.params[w], &pass.dy[y], &mut dx[x]);
        }
    }

    fn cost(&self, n: usize) -> LayerCost {
        let rows = self.rows(n);
        let forward = self.times_own(self.shape.forward_cost::<F>(rows));
        LayerCost {
            forward,
            evaluate: forward,
            params: self.times_own(self.shape.backward_params_cost::<F>(rows)),
            input: self.times_own(self.shape.backward_input_cost::<F>(rows)),
            ..LayerCost::default()
        }
    }
}
