//! Fully connected: `y = x w^T + b`, for every row of a sample.

use super::Cast;
use super::{Backward, Forward, Init, Layer, LayerCost, LayerOperation, Tensor};
use allfold_kernels::nn::{Float, LinearShape as Shape, OpCost};

/// The names of the parameters of a layer in one part.
const NAMES: &[(&str, &str)] = &[("weight", "bias")];

/// A fully connected layer.
pub struct Linear {
    shape: Shape,
    rows: usize,
    weight: Init,
    bias: Option<Init>,
    /// The names of weight and bias; several, if the outputs are saved as several layers of as many outputs each.
    names: &'static [(&'static str, &'static str)],
}

impl Linear {
    /// A layer from `inputs` to `outputs` numbers per sample, with a bias; initial values are drawn as in PyTorch.
    pub fn new(inputs: usize, outputs: usize) -> Linear {
        let init = Init::Uniform(1.0 / (inputs as f64).sqrt());
        Linear { shape: Shape { inputs, outputs }, rows: 1, weight: init, bias: Some(init), names: NAMES }
    }

    /// A layer that is applied to `rows` rows per sample; the two `Init` values are those of the weight and of the bias, if any.
    pub fn rows(rows: usize, (inputs, outputs): (usize, usize), weight: Init, bias: Option<Init>) -> Linear {
        Linear { shape: Shape { inputs, outputs }, rows, weight, bias, names: NAMES }
    }

    /// This layer with its outputs in parts of equal size, whose weights and biases are tensors with these names.
    pub fn in_parts(self, names: &'static [(&'static str, &'static str)]) -> Linear {
        Linear { names, ..self }
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

    fn needs_output(&self) -> bool {
        false
    }

    fn params(&self) -> Vec<Tensor> {
        let (outputs, inputs) = (self.shape.outputs / self.names.len(), self.shape.inputs);
        let weights = self.names.iter().map(|(name, _)| Tensor::new(name, &[outputs, inputs], self.weight));
        let biases =
            self.names.iter().filter_map(|(_, name)| Some(Tensor::new(name, &[outputs], self.bias?)));
        weights.chain(biases).collect()
    }

    fn cast(&self) -> Cast {
        Cast::Narrow
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
