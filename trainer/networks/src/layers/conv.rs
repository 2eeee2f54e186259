//! Convolution with a square kernel.

use super::Cast;
use super::{Backward, Forward, Init, Layer, LayerCost, LayerOperation, LayerTraits, Tensor};
use allfold_kernels::nn::{Conv2dShape as Shape, Float, OpCost};

/// A convolution, which keeps the padded pictures, or the transformed weight, of the forward pass for the backward pass.
pub struct Conv2d {
    shape: Shape,
    init: Init,
    bias: Option<Init>,
}

impl Conv2d {
    /// A convolution of this shape without a bias: a batch norm after it has its own.
    pub fn new(shape: Shape) -> Conv2d {
        let fan_in = shape.inputs / shape.groups * shape.kernel * shape.kernel;
        Conv2d { shape, init: Init::Uniform(1.0 / (fan_in as f64).sqrt()), bias: None }
    }

    /// This convolution with initial weights by He's rule for rectifiers with fan-out (K. He et al., ICCV 2015), as ResNets
    /// have them.
    pub fn normal(self) -> Conv2d {
        let fan_out = self.shape.outputs * self.shape.kernel * self.shape.kernel;
        Conv2d { init: Init::Normal((2.0 / fan_out as f64).sqrt()), ..self }
    }

    /// This convolution with a bias per output channel, with these initial values.
    pub fn with_bias(self, init: Init) -> Conv2d {
        Conv2d { bias: Some(init), ..self }
    }

    fn pixels(&self) -> usize {
        let (rows, cols) = self.shape.output_picture();
        rows * cols
    }
}

impl<F: Float> Layer<F> for Conv2d {
    fn inputs(&self) -> usize {
        self.shape.inputs * self.shape.picture.0 * self.shape.picture.1
    }

    fn outputs(&self) -> usize {
        self.shape.outputs * self.pixels()
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::Conv { shape: self.shape, bias: self.bias.is_some() }
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { cast: Cast::Narrow, free_output: true, uses_up_saved: true, ..LayerTraits::default() }
    }

    fn params(&self) -> Vec<Tensor> {
        let Shape { inputs, outputs, kernel, groups, .. } = self.shape;
        let weight = Tensor::new("weight", &[outputs, inputs / groups, kernel, kernel], self.init);
        let bias = self.bias.map(|init| Tensor::new("bias", &[outputs], init));
        [weight].into_iter().chain(bias).collect()
    }

    fn saved(&self, n: usize) -> (usize, usize) {
        (self.shape.work(n), 0)
    }

    fn forward(&self, pass: Forward<F>) {
        let (w, b) = pass.params.split_at(self.shape.weights());
        self.shape.forward(pass.n, pass.x, w, &mut pass.saved.values, pass.y);
        if self.bias.is_some() {
            self.shape.add_bias(b, pass.y);
        }
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let (dw, db) = grads.split_at_mut(self.shape.weights());
        self.shape.backward_params(pass.n, pass.x, &mut pass.saved.values, pass.dy, dw);
        self.shape.backward_bias(pass.dy, db);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let w = &pass.params[..self.shape.weights()];
        self.shape.backward_input(pass.n, w, pass.dy, &mut pass.saved.values, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        LayerCost {
            sums: OpCost::default(),
            forward: self.shape.forward_cost::<F>(n),
            evaluate: self.shape.forward_cost::<F>(n),
            params: self.shape.backward_params_cost::<F>(n),
            input: self.shape.backward_input_cost::<F>(n),
        }
    }
}
