//! Pooling: maximum or mean of windows, or the mean of whole planes.

use super::{Backward, Forward, Layer, LayerCost, LayerOperation};
use allfold_kernels::nn::{Float, PoolShape};

/// The maximum or the mean of each window.
pub struct Pool {
    shape: PoolShape,
    is_max: bool,
}

/// The mean of each channel's whole plane.
pub struct GlobalMeanPool {
    channels: usize,
    plane: usize,
}

impl Pool {
    /// The maximum of each window.
    pub fn max(shape: PoolShape) -> Pool {
        Pool { shape, is_max: true }
    }

    /// The mean of each window.
    pub fn mean(shape: PoolShape) -> Pool {
        Pool { shape, is_max: false }
    }
}

impl GlobalMeanPool {
    /// A global mean pool over `channels` planes of `plane` pixels.
    pub fn new(channels: usize, plane: usize) -> GlobalMeanPool {
        GlobalMeanPool { channels, plane }
    }
}

impl<F: Float> Layer<F> for Pool {
    fn inputs(&self) -> usize {
        self.shape.channels * self.shape.picture.0 * self.shape.picture.1
    }

    fn outputs(&self) -> usize {
        let (rows, columns) = self.shape.output_picture();
        self.shape.channels * rows * columns
    }

    fn operation(&self) -> LayerOperation {
        if self.is_max { LayerOperation::MaxPool(self.shape) } else { LayerOperation::MeanPool(self.shape) }
    }

    /// The positions of the maxima.
    fn saved(&self, n: usize) -> (usize, usize) {
        (0, if self.is_max { n * Layer::<F>::outputs(self) } else { 0 })
    }

    fn forward(&self, pass: Forward<F>) {
        match self.is_max {
            true => self.shape.max_forward(pass.n, pass.x, pass.y, &mut pass.saved.indices),
            false => self.shape.mean_forward(pass.n, pass.x, pass.y),
        }
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        match self.is_max {
            true => self.shape.max_backward(pass.n, &pass.saved.indices, pass.dy, dx),
            false => self.shape.mean_backward(pass.n, pass.dy, dx),
        }
    }

    fn cost(&self, n: usize) -> LayerCost {
        let (forward, input) = (self.shape.forward_cost::<F>(n), self.shape.backward_cost::<F>(n));
        LayerCost { forward, evaluate: forward, input, ..LayerCost::default() }
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
