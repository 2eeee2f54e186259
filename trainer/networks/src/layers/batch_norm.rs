//! Batch normalisation of each channel, with running statistics for evaluation.

use super::{Backward, Forward, Init, Layer, LayerCost, LayerOperation, LayerTraits, Tensor};
use allfold_kernels::nn::{BatchNormShape as Shape, Float, OpCost};

/// A batch norm. Each rank of a data-parallel run normalises by its own samples; a synchronised batch norm normalises by the
/// samples of all ranks; ranks may have different numbers of samples (C. Peng et al., "MegDet", CVPR 2018).
pub struct BatchNorm {
    shape: Shape,
    synchronised: bool,
}

impl BatchNorm {
    /// A batch norm over `channels` planes of `plane` pixels.
    pub fn new(channels: usize, plane: usize) -> BatchNorm {
        BatchNorm { shape: Shape { channels, plane }, synchronised: false }
    }
}

impl<F: Float> Layer<F> for BatchNorm {
    fn inputs(&self) -> usize {
        self.shape.channels * self.shape.plane
    }

    fn operation(&self) -> LayerOperation {
        let Shape { channels, plane } = self.shape;
        LayerOperation::BatchNorm { channels, plane, synchronised: self.synchronised }
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { free_output: true, needs_gradients: true, ..LayerTraits::default() }
    }

    fn params(&self) -> Vec<Tensor> {
        let channels = [self.shape.channels];
        vec![
            Tensor::new("weight", &channels, Init::Constant(1.0)),
            Tensor::new("bias", &channels, Init::Constant(0.0)),
        ]
    }

    fn buffers(&self) -> Vec<Tensor> {
        let channels = [self.shape.channels];
        vec![
            Tensor::new("running_mean", &channels, Init::Constant(0.0)),
            Tensor::new("running_var", &channels, Init::Constant(1.0)),
        ]
    }

    /// Means and reciprocal standard deviations; if synchronised, also how many values a channel has over all ranks.
    fn saved(&self, _n: usize) -> (usize, usize) {
        (2 * self.shape.channels + usize::from(self.synchronised), 0)
    }

    /// A single value has no variance.
    fn min_batch(&self) -> usize {
        if self.shape.plane == 1 && !self.synchronised { 2 } else { 1 }
    }

    fn batch_suffices(&self, totals: &[f64]) -> bool {
        totals[0] != 1.0
    }

    fn synchronise(&mut self) -> bool {
        !std::mem::replace(&mut self.synchronised, true)
    }

    fn sync_len(&self) -> (usize, usize) {
        let numbers = 2 * self.shape.channels;
        if self.synchronised { (1 + numbers, numbers) } else { (0, 0) }
    }

    fn forward_sums(&self, n: usize, x: &[F], sums: &mut [f64]) {
        self.shape.sums(n, x, sums);
    }

    fn backward_sums(&self, grads: &[F], sums: &mut [f64]) {
        sums.iter_mut().zip(grads).for_each(|(sum, g)| *sum = g.to_f64());
    }

    fn forward(&self, pass: Forward<F>) {
        let (w, b) = pass.params.split_at(self.shape.channels);
        let (saved, count) = pass.saved.values.split_at_mut(2 * self.shape.channels);
        if pass.train && self.synchronised {
            count[0] = F::from_f64(pass.totals[0]);
            self.shape.forward_by(pass.n, pass.x, w, b, pass.totals, pass.buffers, saved, pass.y);
        } else if pass.train {
            self.shape.forward(pass.n, pass.x, w, b, pass.buffers, saved, pass.y);
        } else {
            self.shape.evaluate(pass.n, pass.x, w, b, pass.buffers, pass.y);
        }
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let (dw, db) = grads.split_at_mut(self.shape.channels);
        self.shape.backward_params(
            pass.n,
            pass.x,
            &pass.saved.values[..2 * self.shape.channels],
            pass.dy,
            dw,
            db,
        );
    }

    fn backward_input(&self, pass: &mut Backward<F>, grads: &[F], dx: &mut [F]) {
        let w = &pass.params[..self.shape.channels];
        let (saved, count) = pass.saved.values.split_at(2 * self.shape.channels);
        let totals: Vec<F> = pass.totals.iter().map(|&total| F::from_f64(total)).collect();
        let (m, sums) = match count {
            [count] => (count.to_f64(), &totals[..]),
            _ => ((pass.n * self.shape.plane) as f64, grads),
        };
        let (dw, db) = sums.split_at(self.shape.channels);
        self.shape.backward_input(pass.n, pass.x, w, saved, pass.dy, (m, dw, db), dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let (sums, forward) = match self.synchronised {
            true => (self.shape.sums_cost::<F>(n), self.shape.forward_by_cost::<F>(n)),
            false => (OpCost::default(), self.shape.forward_cost::<F>(n)),
        };
        LayerCost {
            sums,
            forward,
            evaluate: self.shape.evaluate_cost::<F>(n),
            params: self.shape.backward_params_cost::<F>(n),
            input: self.shape.backward_input_cost::<F>(n),
        }
    }
}
