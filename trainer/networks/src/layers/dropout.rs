//! Dropout: in training a share of the numbers becomes 0, and the rest is scaled up so that the expected sum stays the same.

use super::{Backward, Forward, Layer, LayerCost, LayerOperation, LayerTraits};
use allfold_kernels::nn::{DropoutKernel as Kernel, DropoutStream, Float};
use std::ops::Range;

/// Dropout of a sample's numbers. The draw of each is a function of the seed, the step, the sample's place in the step, the layer and
/// the number's place in the sample.
pub struct Dropout {
    share: f64,
    /// The elements of a whole sample that the layer has.
    runs: Vec<Range<usize>>,
}

impl Dropout {
    /// Zeros this share of `outputs` numbers per sample; at least 0 and less than 1.
    pub fn new(share: f64, outputs: usize) -> Dropout {
        Dropout::of_part(share, std::iter::once(0..outputs).collect())
    }

    /// Dropout of these elements of every sample only; the layer drops the same elements as the layer over whole samples.
    pub fn of_part(share: f64, runs: Vec<Range<usize>>) -> Dropout {
        Dropout { share, runs }
    }

    fn width(&self) -> usize {
        self.runs.iter().map(Range::len).sum()
    }
}

impl<F: Float> Layer<F> for Dropout {
    fn inputs(&self) -> usize {
        self.width()
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::Dropout { share: self.share, runs: self.runs.clone() }
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { free_output: true, ..LayerTraits::default() }
    }

    /// The random stream, from which the backward pass repeats the draws.
    fn saved(&self, _n: usize) -> (usize, usize) {
        (0, DropoutStream::WORDS)
    }

    fn forward(&self, pass: Forward<F>) {
        if !pass.train {
            return pass.y.copy_from_slice(pass.x);
        }
        pass.saved.indices.copy_from_slice(&pass.stream.words());
        Kernel { share: self.share }.apply_to(pass.stream, &self.runs, pass.x, pass.y);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        if let Some(stream) = DropoutStream::of_words(&pass.saved.indices) {
            Kernel { share: self.share }.apply_to(stream, &self.runs, pass.dy, dx);
        }
    }

    fn cost(&self, n: usize) -> LayerCost {
        let once = Kernel::cost::<F>(n * self.width());
        LayerCost { forward: once, evaluate: once, input: once, ..LayerCost::default() }
    }
}
