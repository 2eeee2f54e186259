//! Causal self-attention over queries, keys and values side by side.

use super::Cast;
use super::{Backward, Forward, Layer, LayerCost, LayerOperation};
use allfold_kernels::nn::{AttentionShape as Shape, DropoutKernel, DropoutStream, Float};

/// Attention, from `[T, 3 C]` to `[T, C]` per sample. If it drops probabilities, its random draws are those of a
/// [dropout](super::Dropout) layer in its place.
pub struct Attention {
    shape: Shape,
    dropped: f64,
}

impl Attention {
    /// An attention of this shape.
    pub fn new(shape: Shape) -> Attention {
        Attention { shape, dropped: 0.0 }
    }

    /// In training, drops this share of its probabilities; at least 0 and less than 1.
    pub fn dropping(self, share: f64) -> Attention {
        Attention { dropped: share, ..self }
    }

    fn with(&self, stream: DropoutStream) -> Option<(DropoutKernel, DropoutStream)> {
        (self.dropped > 0.0).then_some((DropoutKernel { share: self.dropped }, stream))
    }
}

impl<F: Float> Layer<F> for Attention {
    fn inputs(&self) -> usize {
        3 * self.shape.positions * self.shape.width
    }

    fn outputs(&self) -> usize {
        self.shape.positions * self.shape.width
    }

    fn operation(&self) -> LayerOperation {
        let Shape { positions, width, heads } = self.shape;
        LayerOperation::Attention { positions, width, heads, dropped: self.dropped }
    }

    fn cast(&self) -> Cast {
        Cast::Narrow
    }

    fn saved(&self, n: usize) -> (usize, usize) {
        (n * self.shape.heads * self.shape.positions, if self.dropped > 0.0 { 5 } else { 0 })
    }

    fn forward(&self, pass: Forward<F>) {
        let dropping = self.with(pass.stream).filter(|_| pass.train);
        if dropping.is_some() {
            let DropoutStream { seed, place: [a, b, c] } = pass.stream;
            pass.saved.places.copy_from_slice(&[seed as u32, (seed >> 32) as u32, a, b, c]);
        }
        self.shape.forward_dropping(dropping, pass.x, &mut pass.saved.values, pass.y);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let dropping = match pass.saved.places[..] {
            [low, high, a, b, c] => {
                self.with(DropoutStream { seed: u64::from(high) << 32 | u64::from(low), place: [a, b, c] })
            }
            _ => None,
        };
        self.shape.backward_dropping(dropping, pass.x, &pass.saved.values, (pass.y, pass.dy), dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let [forward, input] = self.shape.cost::<F>(n);
        LayerCost { forward, evaluate: forward, input, ..LayerCost::default() }
    }
}
