//! How the ranks of a tensor axis share the positions of the layers that tensor parallelism leaves whole (sequence parallelism): rank i
//! of T has positions i P/T to (i + 1) P/T of each sample.

use super::Network;
use crate::layers::{Add, Dropout, Gelu, Layer, LayerNorm, LayerOperation, PositionsPart, Relu};
use crate::{Error, Result};
use allfold_kernels::nn::Float;
use std::ops::Range;

/// How the `size` ranks of a tensor axis share positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SequenceSplit {
    pub size: usize,
    positions: usize,
}

/// What a layer reads and writes on a rank of the tensor axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// The layer reads and writes activations between tensor-parallel blocks.
    Between,
    /// The layer begins a block: it reads an activation between blocks.
    First,
    /// The layer is neither the first of a block nor the last.
    Inside,
    /// The layer ends a block: it writes an activation between blocks.
    Last,
}

impl SequenceSplit {
    /// How `size` ranks share the positions of `network`. `blocks` gives the place of each layer.
    ///
    /// # Errors
    /// A network without positions, a layer between blocks that cannot be cut by positions, or positions that `size` does not divide.
    pub fn of<F: Float>(network: &Network<F>, size: usize, blocks: &[Block]) -> Result<SequenceSplit> {
        let positions = network.rows();
        for (l, (name, layer)) in network.names().iter().zip(network.layers()).enumerate() {
            if layer.traits().experts > 0 {
                return Err(Error::Config(format!(
                    "layer `{name}` limits an expert's tokens over a whole sample, and sequence parallelism gives each rank some \
                     positions only; leave out `model.experts` or `parallel.sequence_parallel`"
                )));
            }
            // The last layer gives each rank all rows of its logits.
            let ends = l + 1 < blocks.len() || blocks[l] == Block::First;
            let fits = has_positions(&layer.operation(), blocks[l], positions);
            if positions < 2 || !fits || !ends || !reads_between(network, l, blocks) {
                return Err(Error::Config(format!(
                    "sequence parallelism shares the positions of a sequence, and layer `{name}` has none that it can share; use it for \
                     a gpt"
                )));
            }
        }
        if !positions.is_multiple_of(size) {
            return Err(Error::Config(format!(
                "{size} ranks cannot share {positions} positions evenly; let `parallel.tensor` divide {positions}, or leave out \
                 `parallel.sequence_parallel`"
            )));
        }
        Ok(SequenceSplit { size, positions })
    }

    /// The elements at rank `index`'s positions, of a sample with `width` elements for each position.
    fn own(&self, index: usize, width: usize) -> Range<usize> {
        let part = self.positions / self.size * width;
        index * part..(index + 1) * part
    }

    /// The layer between blocks that rank `index` has in place of `whole`; `None` if there is none.
    pub fn layer<F: Float>(&self, index: usize, whole: &dyn Layer<F>) -> Option<Box<dyn Layer<F>>> {
        let outputs = whole.outputs() / self.size;
        Some(match whole.operation() {
            LayerOperation::LayerNorm { rows, width, eps } => {
                let own = LayerNorm::new(rows / self.size, width).with_eps(eps);
                Box::new(own.sharing_positions())
            }
            LayerOperation::Relu => Box::new(Relu::new(outputs)),
            LayerOperation::Gelu => Box::new(Gelu::new(outputs)),
            LayerOperation::Add => Box::new(Add::new(outputs)),
            LayerOperation::Dropout { share, .. } => {
                let run = self.own(index, whole.outputs() / self.positions);
                Box::new(Dropout::of_part(share, vec![run]))
            }
            LayerOperation::Positions { positions, width } => {
                Box::new(PositionsPart::of_sequence(positions, width, self.own(index, 1)))
            }
            _ => return None,
        })
    }
}

/// Whether a layer computes every one of `positions` positions by itself, or is part of a block that has all of them.
fn has_positions(operation: &LayerOperation, block: Block, positions: usize) -> bool {
    match *operation {
        LayerOperation::Linear { rows, .. } => block != Block::Between && rows == positions,
        LayerOperation::Attention { .. } => block == Block::Inside,
        LayerOperation::LayerNorm { rows, .. }
        | LayerOperation::Positions { positions: rows, .. }
        | LayerOperation::Embedding { positions: rows, .. } => rows == positions,
        LayerOperation::Relu
        | LayerOperation::Gelu
        | LayerOperation::Add
        | LayerOperation::Dropout { .. } => true,
        _ => false,
    }
}

/// Whether layer `l` reads activations between blocks alone, if it is between blocks or begins one.
fn reads_between<F: Float>(network: &Network<F>, l: usize, blocks: &[Block]) -> bool {
    let writes_between = |l: usize| matches!(blocks[l], Block::Between | Block::Last);
    let between = |act: &usize| act.checked_sub(1).is_some_and(writes_between);
    !matches!(blocks[l], Block::Between | Block::First) || network.from(l).iter().all(between)
}

#[cfg(test)]
mod tests {
    use crate::models::{Experts, Gpt, gpt, mlp, moe_gpt};
    use crate::{Network, ParamSpec, Result, TensorSplit};

    const PARTS: Gpt = Gpt {
        vocabulary: 13,
        positions: 8,
        layers: 2,
        width: 12,
        heads: 4,
        dropout: 0.1,
        attention_dropout: 0.1,
        tied: true,
    };

    fn small(positions: usize) -> Network<f64> {
        gpt(&Gpt { positions, ..PARTS }).unwrap()
    }

    fn split(network: &Network<f64>, size: usize) -> Result<TensorSplit> {
        TensorSplit::of(network, size)?.sharing_positions(network)
    }

    #[test]
    fn what_lies_between_blocks_is_a_part_of_what_tensor_parallelism_alone_holds() {
        for size in [2, 4] {
            let plain = TensorSplit::of(&small(8), size).unwrap();
            for index in 0..size {
                let part = split(&small(8), size).unwrap().part(small(8), index).unwrap();
                let before = plain.part(small(8), index).unwrap();
                assert_eq!((part.inputs(), part.rows(), part.classes()), (8, 8, before.classes()));
                let same = |(a, b): (&ParamSpec, &ParamSpec)| a.name == b.name && a.range == b.range;
                assert!(part.params().iter().zip(before.params()).all(same));
                assert_eq!(part.outline().cuts(), before.outline().cuts());
                let layers = part.layers().iter().zip(before.layers());
                for (name, (part, before)) in part.names().iter().zip(layers) {
                    let is_one_of = |names: &[&str]| names.iter().any(|last| name.ends_with(last));
                    let inside = is_one_of(&["c_attn", ".attn", "c_fc", "gelu", "lm_head"]);
                    let share = if inside { 1 } else { size };
                    assert_eq!(part.outputs() * share, before.outputs(), "{name}");
                    assert_eq!(part.saved(3).0 * share, before.saved(3).0, "{name}");
                    let gathers = is_one_of(&["c_proj", "wte"]);
                    let gradient = if gathers { before.outputs() } else { part.outputs() };
                    assert_eq!(part.gradient_len(), gradient, "{name}");
                }
            }
        }
    }

    #[test]
    fn what_ranks_cannot_share_is_refused() {
        let refused = |network: Network<f64>, size| split(&network, size).unwrap_err().to_string();
        let uneven = refused(small(6), 4);
        assert!(
            uneven.contains("4 ranks cannot share 6 positions") && uneven.contains("divide 6"),
            "{uneven}"
        );
        let none = refused(mlp(10, &[8, 6], 5).unwrap(), 2);
        assert!(none.contains("layer `fc1` has none that it can share; use it for a gpt"), "{none}");
        let experts = Experts { experts: 2, chosen: 1, capacity_factor: 0.0, balance: 0.0 };
        let mixture = refused(moe_gpt(&PARTS, &experts).unwrap(), 2);
        assert!(
            mixture.contains("tokens over a whole sample") && mixture.contains("leave out `model.experts`"),
            "{mixture}"
        );
    }
}
