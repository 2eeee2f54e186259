//! Self-attention over queries, keys and values side by side.

use super::Cast;
use super::{Backward, Forward, Layer, LayerCost, LayerOperation, LayerTraits};
use allfold_kernels::nn::{AttentionDropout, AttentionShape as Shape, DropoutKernel, DropoutStream, Float};

/// Attention, from `[T, 3 C]` to `[T, C]` per sample; from fewer numbers, if heads of queries share keys and values. If it drops probabilities, its random draws are those of a
/// [dropout](super::Dropout) layer in its place.
pub struct Attention {
    shape: Shape,
    dropped: f64,
    first_head: usize,
}

impl Attention {
    /// An attention of this shape.
    pub fn new(shape: Shape) -> Attention {
        Attention { shape, dropped: 0.0, first_head: 0 }
    }

    /// This attention with dropout: in training this share of the probabilities is dropped; at least 0 and less than 1.
    pub fn dropping(self, share: f64) -> Attention {
        Attention { dropped: share, ..self }
    }

    /// This attention as a part of a larger one: the larger one's heads from `first_head` on, with the same random draws.
    pub fn from_head(self, first_head: usize) -> Attention {
        Attention { first_head, ..self }
    }

    fn with(&self, stream: DropoutStream) -> Option<AttentionDropout> {
        let kernel = DropoutKernel { share: self.dropped };
        (self.dropped > 0.0).then_some(AttentionDropout { kernel, stream, first_head: self.first_head })
    }
}

impl<F: Float> Layer<F> for Attention {
    fn inputs(&self) -> usize {
        self.shape.positions * self.shape.step()
    }

    fn outputs(&self) -> usize {
        self.shape.positions * self.shape.width
    }

    fn operation(&self) -> LayerOperation {
        let Shape { positions, width, heads, kv_heads, causal } = self.shape;
        let (dropped, first_head) = (self.dropped, self.first_head);
        LayerOperation::Attention { positions, width, heads, kv_heads, causal, dropped, first_head }
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { cast: Cast::Narrow, ..LayerTraits::default() }
    }

    fn saved(&self, n: usize) -> (usize, usize) {
        (
            n * self.shape.heads * self.shape.positions,
            if self.dropped > 0.0 { DropoutStream::WORDS } else { 0 },
        )
    }

    fn forward(&self, pass: Forward<F>) {
        let dropping = self.with(pass.stream).filter(|_| pass.train);
        if dropping.is_some() {
            pass.saved.indices.copy_from_slice(&pass.stream.words());
        }
        self.shape.forward_dropping(dropping, pass.x, &mut pass.saved.values, pass.y);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let dropping = DropoutStream::of_words(&pass.saved.indices).and_then(|stream| self.with(stream));
        self.shape.backward_dropping(dropping, pass.x, &pass.saved.values, (pass.y, pass.dy), dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let [forward, input] = self.shape.cost::<F>(n);
        LayerCost { forward, evaluate: forward, input, ..LayerCost::default() }
    }
}
