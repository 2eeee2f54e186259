//! Layer normalisation of each row, with a weight and a bias.

use super::Cast;
use super::{
    Backward, Forward, Init, Layer, LayerCost, LayerOperation, LayerTraits, MeshAxis, PassKind, PeerCall,
    Tensor,
};
use allfold_kernels::nn::{Float, LayerNormShape as Shape, OpCost};

/// A layer norm over `rows` rows per sample.
pub struct LayerNorm {
    rows: usize,
    shape: Shape,
    /// Whether ranks of the tensor axis share the positions of a sample.
    shared: bool,
}

impl LayerNorm {
    /// A layer norm over `rows` rows of `width` numbers per sample.
    pub fn new(rows: usize, width: usize) -> LayerNorm {
        LayerNorm { rows, shape: Shape { width, eps: Shape::EPS }, shared: false }
    }

    /// This layer norm with another constant added to the variance.
    pub fn with_eps(self, eps: f64) -> LayerNorm {
        LayerNorm { shape: Shape { eps, ..self.shape }, ..self }
    }

    /// This layer norm, of this rank's positions under sequence parallelism: every rank of the tensor axis has the whole weight and bias,
    /// whose gradients are summed over the ranks.
    pub fn sharing_positions(self) -> LayerNorm {
        LayerNorm { shared: true, ..self }
    }
}

impl<F: Float> Layer<F> for LayerNorm {
    fn inputs(&self) -> usize {
        self.rows * self.shape.width
    }

    fn operation(&self) -> LayerOperation {
        let Shape { width, eps } = self.shape;
        match self.shared {
            true => LayerOperation::SequenceLayerNorm { rows: self.rows, width, eps },
            false => LayerOperation::LayerNorm { rows: self.rows, width, eps },
        }
    }

    fn traits(&self) -> LayerTraits {
        let axis = self.shared.then_some(MeshAxis::Tensor);
        LayerTraits { axis, cast: Cast::Full, free_output: true, ..LayerTraits::default() }
    }

    fn peer_calls(&self, pass: PassKind, _n: usize) -> Vec<PeerCall> {
        let sums = self.shared && pass == PassKind::WeightGrad;
        sums.then_some(PeerCall::Sum(2 * self.shape.width)).into_iter().collect()
    }

    fn params(&self) -> Vec<Tensor> {
        let width = [self.shape.width];
        vec![
            Tensor::new("weight", &width, Init::Constant(1.0)),
            Tensor::new("bias", &width, Init::Constant(0.0)),
        ]
    }

    fn saved(&self, n: usize) -> (usize, usize) {
        (2 * n * self.rows, 0)
    }

    fn forward(&self, pass: Forward<F>) {
        let (w, b) = pass.params.split_at(self.shape.width);
        self.shape.forward(pass.x, w, b, &mut pass.saved.values, pass.y);
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let (dw, db) = grads.split_at_mut(self.shape.width);
        self.shape.backward_params(pass.x, &pass.saved.values, pass.dy, dw, db);
        if self.shared {
            pass.peers.sum(grads);
        }
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        self.shape.backward_input(pass.x, &pass.params[..self.shape.width], &pass.saved.values, pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let [forward, params, input] = self.shape.cost::<F>(n * self.rows);
        LayerCost { sums: OpCost::default(), forward, evaluate: forward, params, input }
    }
}
