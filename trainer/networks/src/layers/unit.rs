//! Layers that apply a function to each number.

use super::{Backward, Forward, Layer, LayerCost, LayerOperation, LayerTraits};
use allfold_kernels::nn::{self, Float, OpCost};
use std::marker::PhantomData;

/// The rectifier, max(x, 0).
pub type Relu = Unit<nn::ReluKernel>;
/// The Gaussian error linear unit.
pub type Gelu = Unit<nn::GeluKernel>;
/// The hyperbolic tangent.
pub type Tanh = Unit<nn::TanhKernel>;

/// A layer that applies the function K to each number of a sample.
pub struct Unit<K>(usize, PhantomData<fn() -> K>);

impl<K> Unit<K> {
    /// The layer over `outputs` numbers per sample.
    pub fn new(outputs: usize) -> Unit<K> {
        Unit(outputs, PhantomData)
    }
}

/// A function of one number that can be a layer.
pub trait Elementwise {
    /// The layer's operation.
    const OPERATION: LayerOperation;
    /// Whether the output may be written over the input; the derivative is then computed from the output alone.
    const IN_PLACE: bool = false;
    /// Whether the backward pass reads the output.
    const NEEDS_OUTPUT: bool = Self::IN_PLACE;
    /// Computes `y` from `x`.
    fn forward<F: Float>(x: &[F], y: &mut [F]);
    /// Computes `dx` from `dy`, the input and the output.
    fn backward<F: Float>(x_y: (&[F], &[F]), dy: &[F], dx: &mut [F]);
    /// Computes `y` from `x`, which `y` holds at the start.
    fn forward_in_place<F: Float>(_y: &mut [F]) {}
    /// Computes `dx` from `dy`, which `dx` holds at the start, and from the output.
    fn backward_in_place<F: Float>(_y: &[F], _dx: &mut [F]) {}
    /// The costs of the forward and the backward pass over `elements` elements.
    fn costs<F: Float>(elements: usize) -> [OpCost; 2];
}

impl Elementwise for nn::ReluKernel {
    const OPERATION: LayerOperation = LayerOperation::Relu;
    const IN_PLACE: bool = true;

    fn forward<F: Float>(x: &[F], y: &mut [F]) {
        Self::forward(x, y);
    }

    fn backward<F: Float>((_, y): (&[F], &[F]), dy: &[F], dx: &mut [F]) {
        Self::backward(y, dy, dx);
    }

    fn forward_in_place<F: Float>(y: &mut [F]) {
        Self::forward_in_place(y);
    }

    fn backward_in_place<F: Float>(y: &[F], dx: &mut [F]) {
        Self::backward_in_place(y, dx);
    }

    fn costs<F: Float>(elements: usize) -> [OpCost; 2] {
        [Self::forward_cost::<F>(elements), Self::backward_cost::<F>(elements)]
    }
}

impl Elementwise for nn::GeluKernel {
    const OPERATION: LayerOperation = LayerOperation::Gelu;

    fn forward<F: Float>(x: &[F], y: &mut [F]) {
        Self::forward(x, y);
    }

    fn backward<F: Float>((x, _): (&[F], &[F]), dy: &[F], dx: &mut [F]) {
        Self::backward(x, dy, dx);
    }

    fn costs<F: Float>(elements: usize) -> [OpCost; 2] {
        [Self::forward_cost::<F>(elements), Self::backward_cost::<F>(elements)]
    }
}

impl Elementwise for nn::TanhKernel {
    const OPERATION: LayerOperation = LayerOperation::Own;
    const NEEDS_OUTPUT: bool = true;

    fn forward<F: Float>(x: &[F], y: &mut [F]) {
        Self::forward(x, y);
    }

    fn backward<F: Float>((_, y): (&[F], &[F]), dy: &[F], dx: &mut [F]) {
        Self::backward(y, dy, dx);
    }

    fn costs<F: Float>(elements: usize) -> [OpCost; 2] {
        Self::costs::<F>(elements)
    }
}

impl<F: Float, K: Elementwise> Layer<F> for Unit<K> {
    fn inputs(&self) -> usize {
        self.0
    }

    fn operation(&self) -> LayerOperation {
        K::OPERATION
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { in_place: K::IN_PLACE, free_output: !K::NEEDS_OUTPUT, ..LayerTraits::default() }
    }

    fn forward(&self, pass: Forward<F>) {
        K::forward(pass.x, pass.y);
    }

    fn forward_in_place(&self, _other: &[F], y: &mut [F]) {
        K::forward_in_place(y);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        K::backward((pass.x, pass.y), pass.dy, dx);
    }

    fn backward_in_place(&self, y: &[F], dx: &mut [F]) {
        K::backward_in_place(y, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let [forward, input] = K::costs::<F>(n * self.0);
        LayerCost { forward, evaluate: forward, input, ..LayerCost::default() }
    }
}
