//! Recomputation of activations: a block keeps only its input and its output, and its backward pass first runs its forward pass
//! again (T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174).
//!
//! ```text
//! forward    block 0 | block 1 | block 2        after each: activations inside the block, and what its layers saved, are freed
//! backward   again 2, back 2 | again 1, back 1 | again 0, back 0
//! ```
//!
//! A block is a run of layers whose names begin alike up to their first number, such as `transformer.h.3`. The last layer of a block
//! does not run again: its output, and what it saved, are kept. Nor does a layer whose results the backward pass does not read, such
//! as the linear layer before a residual sum.

use super::{Network, NetworkTensors, Phase, layer_of};
use crate::{Error, Result};
use allfold_kernels::nn::Float;
use std::collections::BTreeSet;
use std::ops::Range;

/// The name of the block that a layer belongs to: its own name up to its first number; `None` if its name has no number.
fn block_of(layer: &str) -> Option<&str> {
    let mut end = 0;
    for part in layer.split_inclusive('.') {
        end += part.len();
        let part = part.trim_end_matches('.');
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(&layer[..end]);
        }
    }
    None
}

impl<F: Float> Network<F> {
    /// Recomputes the activations of every `every`th block, the first one included; 0: of none.
    ///
    /// # Errors
    /// A network without blocks, or a block with a layer whose forward pass changes buffers, as batch norms do.
    pub fn recompute(&mut self, every: usize) -> Result<()> {
        self.recomputed = match every {
            0 => Vec::new(),
            every => self.blocks_by_name().into_iter().step_by(every).collect(),
        };
        if every > 0 && self.recomputed.is_empty() {
            return Err(Error::Config(
                "`training.recompute` is for networks of blocks, such as those of model gpt, bert or llama; \
                 this one has none"
                    .into(),
            ));
        }
        let changes = |l: &usize| !self.layers[*l].buffers().is_empty();
        if let Some(layer) = self.recomputed.iter().cloned().flatten().find(changes) {
            return Err(Error::Config(format!(
                "`training.recompute` runs forward passes twice, and layer `{}` updates running statistics in each; leave it out",
                self.names[layer]
            )));
        }
        self.storages = self.assign_storage();
        Ok(())
    }

    /// The layers of each block, first to last. Only one activation crosses each end of a block.
    fn blocks_by_name(&self) -> Vec<Range<usize>> {
        let mut blocks: Vec<Range<usize>> = Vec::new();
        for l in 0..self.layers.len() {
            let Some(name) = block_of(&self.names[l]) else { continue };
            match blocks.last_mut() {
                Some(last) if last.end == l && block_of(&self.names[l - 1]) == Some(name) => last.end = l + 1,
                _ => blocks.push(l..l + 1),
            }
        }
        let is_end = |act: usize| act == 0 || act == self.layers.len() || self.is_cut(act);
        blocks.retain(|block| block.len() > 1 && is_end(block.start) && is_end(block.end));
        blocks
    }

    /// Whether activation `act` is the input of a recomputed block, which no layer may overwrite.
    pub(super) fn begins_recomputed(&self, act: usize) -> bool {
        self.recomputed.iter().any(|block| block.start == act)
    }

    /// Whether layer `l` is the last of a recomputed block, whose output has memory of its own.
    pub fn ends_recomputed(&self, l: usize) -> bool {
        self.recomputed.iter().any(|block| block.end == l + 1)
    }

    /// Whether activation `act` is inside a recomputed block, where the network cannot be cut.
    pub(super) fn is_inside_recomputed(&self, act: usize) -> bool {
        self.recomputed.iter().any(|block| block.start < act && act < block.end)
    }

    /// The phases of a backward pass, with each recomputed block's forward phases before its backward phases.
    pub(super) fn with_recomputed(&self, mut phases: Vec<Phase>) -> Vec<Phase> {
        for block in &self.recomputed {
            let of_block = |phase: &&Phase| layer_of(**phase).is_some_and(|l| block.contains(&l));
            let Some(first) = phases.iter().position(|phase| of_block(&phase)) else { continue };
            let backward: Vec<Phase> = phases.iter().filter(of_block).copied().collect();
            phases.splice(first..first, self.again(block, &backward));
        }
        phases
    }

    /// The forward phases of a block that run again, because the backward phases read their results.
    fn again(&self, block: &Range<usize>, backward: &[Phase]) -> Vec<Phase> {
        let mut read: BTreeSet<usize> =
            backward.iter().flat_map(|phase| self.reads(*phase)).flatten().collect();
        let mut again = Vec::new();
        for l in (block.start..block.end - 1).rev() {
            let saves = self.layers[l].saved(1).0 > 0;
            let runs_backward = || backward.iter().any(|phase| layer_of(*phase) == Some(l));
            if read.contains(&self.storage_of(l + 1)) || saves && runs_backward() {
                again.push(Phase::Recompute(l));
                read.extend(self.from(l).iter().map(|&from| self.storage_of(from)));
            }
        }
        again.reverse();
        again
    }

    /// The most values that a recomputed block holds for `n` samples while its backward pass runs, besides its input and output.
    pub(super) fn recomputed_values(&self, n: usize) -> u128 {
        let held = |block: &Range<usize>| -> u128 {
            block.clone().filter(|l| self.is_recomputed(*l)).map(|l| self.values_held(l, n)).sum()
        };
        self.recomputed.iter().map(held).max().unwrap_or(0)
    }

    /// The values of layer `l`'s output, where it has memory of its own, and those that the layer saves.
    pub(super) fn values_held(&self, l: usize, n: usize) -> u128 {
        let own =
            if self.storage_of(l + 1) == l + 1 { n as u128 * self.layers[l].outputs() as u128 } else { 0 };
        self.layers[l].saved(n).0 as u128 + own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Gpt, gpt};

    #[test]
    fn layers_whose_results_nobody_reads_do_not_run_again() {
        let parts = Gpt {
            vocabulary: 7,
            positions: 4,
            layers: 2,
            width: 8,
            heads: 2,
            dropout: 0.0,
            attention_dropout: 0.0,
            tied: true,
        };
        let mut network = gpt::<f32>(&parts).unwrap();
        network.recompute(2).unwrap();
        let phases = network.backward_phases();
        let first = phases.iter().position(|phase| matches!(phase, Phase::Recompute(_))).unwrap();
        let again: Vec<&str> = phases[first..]
            .iter()
            .map_while(
                |phase| if let Phase::Recompute(l) = phase { Some(&*network.names()[*l]) } else { None },
            )
            .collect();
        let block = ["ln_1", "attn.c_attn", "attn", "attn.c_proj", "add_1", "ln_2", "mlp.c_fc", "mlp.gelu"];
        assert_eq!(again, block.map(|part| format!("transformer.h.0.{part}")));
        // Only the first of two blocks is recomputed, and the network is not cut inside it.
        assert_eq!(phases.iter().filter(|phase| matches!(phase, Phase::Recompute(_))).count(), 8);
        let cuts = network.outline().cuts().to_vec();
        let is_cut = |name: &str| cuts.iter().any(|cut| network.names()[*cut] == name);
        assert!(
            !is_cut("transformer.h.0.ln_2")
                && is_cut("transformer.h.1.ln_1")
                && is_cut("transformer.h.1.ln_2")
        );
    }
}
