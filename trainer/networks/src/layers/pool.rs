//! Pooling: maximum or mean of windows, or the mean of whole planes.

use super::{Backward, Forward, Layer, LayerCost, LayerOperation};
use allfold_kernels::nn::{Float, PoolShape};

/// The maximum of each window.
pub struct MaxPool(PoolShape);

/// The mean of each window.
pub struct MeanPool(PoolShape);

/// The mean of each channel's whole plane.
pub struct GlobalMeanPool {
    channels: usize,
    plane: usize,
}

impl MaxPool {
    /// A pooling of this shape.
    pub fn new(shape: PoolShape) -> MaxPool {
        MaxPool(shape)
    }
}

impl MeanPool {
    /// A pooling of this shape.
    pub fn new(shape: PoolShape) -> MeanPool {
        MeanPool(shape)
    }
}

impl GlobalMeanPool {
    /// A global mean pool over `channels` planes of `plane` pixels.
    pub fn new(channels: usize, plane: usize) -> GlobalMeanPool {
        GlobalMeanPool { channels, plane }
    }
}

fn inputs(shape: &PoolShape) -> usize {
    shape.channels * shape.picture.0 * shape.picture.1
}

fn outputs(shape: &PoolShape) -> usize {
    let (rows, cols) = shape.output_picture();
    shape.channels * rows * cols
}

fn cost<F: Float>(shape: &PoolShape, n: usize) -> LayerCost {
    LayerCost {
        forward: shape.forward_cost::<F>(n),
        evaluate: shape.forward_cost::<F>(n),
        input: shape.backward_cost::<F>(n),
        ..LayerCost::default()
    }
}

impl<F: Float> Layer<F> for MaxPool {
    fn inputs(&self) -> usize {
        inputs(&self.0)
    }

    fn outputs(&self) -> usize {
        outputs(&self.0)
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::MaxPool(self.0)
    }

    fn saved(&self, n: usize) -> (usize, usize) {
        (0, n * outputs(&self.0))
    }

    fn forward(&self, pass: Forward<F>) {
        self.0.max_forward(pass.n, pass.x, pass.y, &mut pass.saved.indices);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        self.0.max_backward(pass.n, &pass.saved.indices, pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        cost::<F>(&self.0, n)
    }
}

impl<F: Float> Layer<F> for MeanPool {
    fn inputs(&self) -> usize {
        inputs(&self.0)
    }

    fn outputs(&self) -> usize {
        outputs(&self.0)
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::MeanPool(self.0)
    }

    fn forward(&self, pass: Forward<F>) {
        self.0.mean_forward(pass.n, pass.x, pass.y);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        self.0.mean_backward(pass.n, pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        cost::<F>(&self.0, n)
    }
}

impl<F: Float> Layer<F> for GlobalMeanPool {
    fn inputs(&self) -> usize {
        self.channels * self.plane
    }

    fn outputs(&self) -> usize {
        self.channels
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::GlobalMeanPool { channels: self.channels, plane: self.plane }
    }

    fn forward(&self, pass: Forward<F>) {
        PoolShape::global_mean(self.plane, pass.x, pass.y);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        PoolShape::global_mean_backward(self.plane, pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let both = PoolShape::global_mean_cost::<F>(self.plane, n * self.channels);
        LayerCost { forward: both, evaluate: both, input: both, ..LayerCost::default() }
    }
}
