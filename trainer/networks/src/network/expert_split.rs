//! How the ranks of an expert axis share the experts of a network: each has some experts of every mixture, and all other layers.

use super::{Network, ParamLayout, ParamSpec};
use crate::{Error, Result};
use allfold_kernels::nn::Float;
use std::ops::Range;

/// How the `size` ranks of an expert axis share a network's experts.
#[derive(Clone, Debug)]
pub struct ExpertSplit {
    size: usize,
    /// For each parameter of the whole network: whether it is cut between experts, and its elements.
    params: Vec<(bool, Range<usize>)>,
}

impl ExpertSplit {
    /// How `size` ranks, 2 or more, share `network`.
    ///
    /// # Errors
    /// A network without experts, or a number of experts that `size` does not divide.
    pub fn of<F: Float>(network: &Network<F>, size: usize) -> Result<ExpertSplit> {
        let mixtures =
            network.layers.iter().zip(&network.names).filter(|(layer, _)| layer.traits().experts > 0);
        if mixtures.clone().next().is_none() {
            return Err(Error::Config(
                "expert parallelism shares the experts of a network, and the network has none; use model `gpt` with `model.experts` \
                 of 2 or more"
                    .into(),
            ));
        }
        for (layer, name) in mixtures {
            let experts = layer.traits().experts;
            if !experts.is_multiple_of(size) {
                return Err(Error::Config(format!(
                    "{size} ranks cannot share the {experts} experts of layer `{name}` evenly; let `parallel.expert` divide \
                     {experts}"
                )));
            }
        }
        let mut params: Vec<(bool, Range<usize>)> =
            network.params.iter().map(|ParamSpec { range, .. }| (false, range.clone())).collect();
        for (layer, spans) in network.layers.iter().zip(&network.spans) {
            let part = layer.sharing_experts(size);
            if part.is_some_and(|part| part.traits().has_some_experts) {
                params[spans.params.clone()].iter_mut().for_each(|(cut, _)| *cut = true);
            }
        }
        Ok(ExpertSplit { size, params })
    }

    /// The number of ranks of the axis.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Which elements of the whole network's parameters rank `index` has.
    pub fn layout(&self, index: usize) -> ParamLayout {
        let own = |(cut, range): &(bool, Range<usize>)| match cut {
            true => {
                let part = range.len() / self.size;
                range.start + index * part..range.start + (index + 1) * part
            }
            false => range.clone(),
        };
        ParamLayout::of(self.params.iter().map(own), self.params.last().map_or(0, |(_, range)| range.end))
    }

    /// A rank's part of `network`, the network that the split was made of. The parts of all ranks have the same layers.
    ///
    /// # Errors
    /// Never for that network.
    pub fn part<F: Float>(&self, network: Network<F>) -> Result<Network<F>> {
        let (inputs, rows) = (network.inputs(), network.rows);
        network.rebuilt(inputs, rows, |_, layer| layer.sharing_experts(self.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Experts, Gpt, gpt, moe_gpt};

    const PARTS: Gpt = Gpt {
        vocabulary: 13,
        positions: 4,
        layers: 2,
        width: 12,
        heads: 3,
        dropout: 0.0,
        attention_dropout: 0.0,
        tied: true,
    };

    fn small(experts: usize) -> Network<f64> {
        let experts = Experts { experts, chosen: 2, capacity_factor: 0.0, balance: 0.01 };
        moe_gpt(&PARTS, &experts).unwrap()
    }

    #[test]
    fn every_expert_is_on_one_rank_and_every_rank_has_the_other_layers() {
        for size in [2, 3, 6] {
            let (whole, split) = (small(6), ExpertSplit::of(&small(6), size).unwrap());
            let mut held = vec![0; whole.param_count()];
            for index in 0..size {
                let numbers: Vec<usize> = (0..held.len()).collect();
                let own = split.layout(index).take(&numbers);
                assert_eq!(own.len(), split.part(small(6)).unwrap().param_count());
                own.into_iter().for_each(|at| held[at] += 1);
            }
            for place in whole.params() {
                let times = if place.name.contains("experts") { 1 } else { size };
                assert!(held[place.range.clone()].iter().all(|held| *held == times), "{}", place.name);
            }
        }
    }

    #[test]
    fn the_layers_with_some_experts_are_units_of_their_own() {
        let part = ExpertSplit::of(&small(6), 2).unwrap().part(small(6)).unwrap();
        let outline = part.outline();
        let blocks = outline.blocks(&(0..outline.layers()));
        let edges = |blocks: &[Range<usize>]| {
            (blocks[0].start, blocks.last().unwrap().end) == (0, outline.layers())
                && blocks.windows(2).all(|two| two[0].end == two[1].start)
        };
        assert!(edges(&blocks));
        for layers in blocks {
            let names = outline.names()[layers.clone()].iter();
            let owners: Vec<bool> = layers
                .zip(names)
                .filter(|(l, _)| !outline.values_of(*l).is_empty() && outline.owner(*l) == *l)
                .map(|(_, name)| name.contains("experts"))
                .collect();
            assert!(owners.windows(2).all(|two| two[0] == two[1]), "{owners:?}");
        }
    }

    #[test]
    fn what_ranks_cannot_share_is_refused() {
        let error = ExpertSplit::of(&small(6), 4).unwrap_err().to_string();
        assert!(
            error.contains("4 ranks cannot share the 6 experts") && error.contains("divide 6"),
            "{error}"
        );
        let error = ExpertSplit::of(&gpt::<f64>(&PARTS).unwrap(), 2).unwrap_err().to_string();
        assert!(error.contains("the network has none; use model `gpt` with `model.experts`"), "{error}");
    }
}
