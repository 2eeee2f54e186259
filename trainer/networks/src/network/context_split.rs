//! How the ranks of a context axis share the positions of every sample: each has the same parameters, a chunk of positions from the
//! front and one from the back.

use super::Network;
use crate::layers::{
    Add, Dropout, Embedding, Gelu, Init, Layer, LayerNorm, LayerOperation, Linear, PositionsPart, Relu,
    RingAttention, own_positions,
};
use crate::{Error, Result};
use allfold_kernels::nn::{AttentionShape, EmbeddingShape, Float};

/// How the `size` ranks of a context axis share a network's positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextSplit {
    size: usize,
    positions: usize,
}

impl ContextSplit {
    /// How `size` ranks, 2 or more, share `network`.
    ///
    /// # Errors
    /// A network without positions, a layer that cannot be cut by positions, or positions that do not divide into two chunks for
    /// each rank.
    pub fn of<F: Float>(network: &Network<F>, size: usize) -> Result<ContextSplit> {
        let positions = network.rows();
        for (name, layer) in network.names().iter().zip(network.layers()) {
            let cut = match layer.operation() {
                LayerOperation::Linear { rows, .. } | LayerOperation::LayerNorm { rows, .. } => {
                    rows == positions
                }
                LayerOperation::Attention { causal: true, .. }
                | LayerOperation::Embedding { .. }
                | LayerOperation::Positions { .. } => true,
                LayerOperation::Relu
                | LayerOperation::Gelu
                | LayerOperation::Add
                | LayerOperation::Dropout { .. } => true,
                _ => false,
            };
            if layer.traits().experts > 0 {
                return Err(Error::Config(format!(
                    "layer `{name}` limits an expert's tokens over a whole sample, and context parallelism gives each rank some \
                     positions only; use `expert` instead of `context`, or no `model.experts`"
                )));
            }
            if !cut || positions < 2 {
                return Err(Error::Config(format!(
                    "context parallelism shares the positions of a sequence, and layer `{name}` has none; use it for a gpt"
                )));
            }
        }
        if !positions.is_multiple_of(2 * size) {
            return Err(Error::Config(format!(
                "{size} ranks cannot share {positions} positions in two equal chunks each; use a multiple of {}",
                2 * size
            )));
        }
        Ok(ContextSplit { size, positions })
    }

    /// The number of ranks of the axis.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The values at rank `index`'s positions. `whole` has one value for each position of each sample.
    pub fn cut<T: Copy>(&self, index: usize, whole: &[T]) -> Vec<T> {
        let own = own_positions(self.positions, index, self.size);
        let samples = whole.chunks_exact(self.positions);
        samples.flat_map(|sample| own.clone().into_iter().flatten().map(|at| sample[at])).collect()
    }

    /// Rank `index`'s part of `network`, the network that the split was made of. The part has all parameters of the network.
    ///
    /// # Errors
    /// Never for that network.
    pub fn part<F: Float>(&self, network: Network<F>, index: usize) -> Result<Network<F>> {
        let (inputs, rows) = (network.inputs() / self.size, network.rows() / self.size);
        network.rebuilt(inputs, rows, |_, layer| self.layer(index, layer))
    }

    fn layer<F: Float>(&self, index: usize, whole: &dyn Layer<F>) -> Option<Box<dyn Layer<F>>> {
        let (outputs, init) = (whole.outputs() / self.size, Init::Constant(0.0));
        let rows = self.positions / self.size;
        Some(match whole.operation() {
            LayerOperation::Linear { inputs, outputs, bias, .. } => {
                Box::new(Linear::rows(rows, (inputs, outputs), init, bias.then_some(init)))
            }
            LayerOperation::LayerNorm { width, eps, .. } => {
                Box::new(LayerNorm::new(rows, width).with_eps(eps))
            }
            LayerOperation::Relu => Box::new(Relu::new(outputs)),
            LayerOperation::Gelu => Box::new(Gelu::new(outputs)),
            LayerOperation::Add => Box::new(Add::new(outputs)),
            LayerOperation::Dropout { share, .. } => {
                let width = whole.outputs() / self.positions;
                let own = own_positions(self.positions, index, self.size);
                let runs = own.map(|own| own.start * width..own.end * width);
                Box::new(Dropout::of_part(share, runs.to_vec()))
            }
            LayerOperation::Embedding { rows: table, width, .. } => {
                Box::new(Embedding::new(rows, EmbeddingShape { rows: table, width }, init))
            }
            LayerOperation::Positions { positions, width } => {
                Box::new(PositionsPart::new(positions, width, (index, self.size)))
            }
            LayerOperation::Attention { positions, width, heads, causal: true, dropped, .. } => {
                let whole = AttentionShape { positions, width, heads, kv_heads: heads, causal: true };
                Box::new(RingAttention::new(whole, self.size, dropped))
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Gpt, gpt, mlp};

    fn small(positions: usize) -> Network<f64> {
        let parts = Gpt {
            vocabulary: 13,
            positions,
            layers: 2,
            width: 12,
            heads: 3,
            dropout: 0.1,
            attention_dropout: 0.0,
            tied: true,
        };
        gpt(&parts).unwrap()
    }

    #[test]
    fn every_position_is_on_one_rank_and_every_rank_has_all_parameters() {
        let split = ContextSplit::of(&small(12), 3).unwrap();
        let samples: Vec<usize> = (0..24).collect();
        let mut all: Vec<usize> = (0..3).flat_map(|index| split.cut(index, &samples)).collect();
        assert_eq!(split.cut(1, &samples), [2, 3, 8, 9, 14, 15, 20, 21]);
        all.sort_unstable();
        assert_eq!(all, samples);
        for index in 0..3 {
            let part = split.part(small(12), index).unwrap();
            assert_eq!((part.inputs(), part.rows(), part.classes()), (4, 4, 13));
            assert!(
                part.params()
                    .iter()
                    .zip(small(12).params())
                    .all(|(a, b)| a.range == b.range && a.name == b.name)
            );
        }
    }

    #[test]
    fn what_ranks_cannot_share_is_refused() {
        let error = ContextSplit::of(&small(12), 4).unwrap_err().to_string();
        assert!(
            error.contains("4 ranks cannot share 12 positions") && error.contains("multiple of 8"),
            "{error}"
        );
        let error = ContextSplit::of(&mlp::<f64>(10, &[8], 5).unwrap(), 2).unwrap_err().to_string();
        assert!(error.contains("layer `fc1` has none; use it for a gpt"), "{error}");
    }
}
