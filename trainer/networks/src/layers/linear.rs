//! Fully connected: `y = x w^T + b`, for every row of a sample.

use super::Cast;
use super::{Backward, Forward, Init, Layer, LayerCost, LayerOperation, LayerTraits, Tensor};
use allfold_kernels::nn::{Float, LinearShape as Shape, OpCost};

/// The names of weight and bias of a layer in one part.
const NAMES: (&str, &str) = ("weight", "bias");

/// Some outputs of a layer, saved as a layer of its own: the names of its weight and bias, and its number of outputs.
type LinearPart = ((&'static str, &'static str), usize);

/// A fully connected layer.
pub struct Linear {
    shape: Shape,
    rows: usize,
    weight: Init,
    bias: Option<Init>,
    parts: Vec<LinearPart>,
}

impl Linear {
    /// A layer from `inputs` to `outputs` numbers per sample, with a bias; initial values are drawn as in PyTorch.
    pub fn new(inputs: usize, outputs: usize) -> Linear {
        let init = Init::Uniform(1.0 / (inputs as f64).sqrt());
        Linear::rows(1, (inputs, outputs), init, Some(init))
    }

    /// A layer that is applied to `rows` rows per sample; the two `Init` values are those of the weight and of the bias, if any.
    pub fn rows(rows: usize, (inputs, outputs): (usize, usize), weight: Init, bias: Option<Init>) -> Linear {
        Linear { shape: Shape { inputs, outputs }, rows, weight, bias, parts: vec![(NAMES, outputs)] }
    }

    /// This layer with its outputs in parts of equal size, whose weights and biases are tensors with these names.
    pub fn in_parts(self, names: &[(&'static str, &'static str)]) -> Linear {
        let each = self.shape.outputs / names.len();
        Linear { parts: names.iter().map(|names| (*names, each)).collect(), ..self }
    }

    /// This layer, which has no bias, with its outputs in parts of these sizes, whose weights are tensors with these names.
    pub fn in_unlike_parts(self, parts: Vec<(&'static str, usize)>) -> Linear {
        let parts = parts.into_iter().map(|(weight, outputs)| ((weight, NAMES.1), outputs)).collect();
        Linear { parts, ..self }
    }

    fn weights(&self) -> usize {
        self.shape.inputs * self.shape.outputs
    }
}

impl<F: Float> Layer<F> for Linear {
    fn inputs(&self) -> usize {
        self.rows * self.shape.inputs
    }

    fn outputs(&self) -> usize {
        self.rows * self.shape.outputs
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::Linear {
            rows: self.rows,
            inputs: self.shape.inputs,
            outputs: self.shape.outputs,
            bias: self.bias.is_some(),
        }
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { cast: Cast::Narrow, free_output: true, ..LayerTraits::default() }
    }

    fn params(&self) -> Vec<Tensor> {
        let inputs = self.shape.inputs;
        let weights = (self.parts.iter())
            .map(|((name, _), outputs)| Tensor::new(name, &[*outputs, inputs], self.weight));
        let biases = (self.parts.iter())
            .filter_map(|((_, name), outputs)| Some(Tensor::new(name, &[*outputs], self.bias?)));
        weights.chain(biases).collect()
    }

    fn forward(&self, pass: Forward<F>) {
        let (w, b) = pass.params.split_at(self.weights());
        self.shape.forward(pass.n * self.rows, pass.x, w, b, pass.y);
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let (dw, db) = grads.split_at_mut(self.weights());
        self.shape.backward_params(pass.n * self.rows, pass.x, pass.dy, dw, db);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        self.shape.backward_input(pass.n * self.rows, &pass.params[..self.weights()], pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let n = n * self.rows;
        LayerCost {
            sums: OpCost::default(),
            forward: self.shape.forward_cost::<F>(n),
            evaluate: self.shape.forward_cost::<F>(n),
            params: self.shape.backward_params_cost::<F>(n),
            input: self.shape.backward_input_cost::<F>(n),
        }
    }
}
