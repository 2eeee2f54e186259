//! How the ranks of a tensor axis share a network: which layers are cut, and which elements of each parameter a rank holds.
//!
//! ```text
//! Linear -> functions of one number -> Linear     column-parallel, narrower, row-parallel
//! Linear -> Attention -> Linear                   column-parallel by heads of q, k and v, fewer heads, row-parallel
//! Linear -> Rope -> Attention -> Linear           the same
//! Linear -> Swiglu -> Linear                      column-parallel by gates and values, narrower, row-parallel
//! Embedding                                       by rows of the table
//! Linear at the end                               column-parallel; the loss is computed from logits in parts
//! ```
//!
//! All other layers are whole on every rank, or with sequence parallelism cut by positions. A shared network has the layers of the
//! whole network, under the same numbers and names, with smaller parameters.

use super::sequence_split::{Block, SequenceSplit};
use super::{Network, ParamLayout, ParamSpec};
use crate::layers::{
    Attention, Gelu, Layer, LayerOperation, ParallelLinear, Relu, Rope, Swiglu, VocabParallelEmbedding,
};
use crate::{Error, Result};
use allfold_kernels::nn::{AttentionShape, ClassSplit, Float, RopeShape};
use std::ops::Range;

/// How the ranks of a tensor axis split a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Every rank has the whole layer.
    Whole,
    /// A rank has some outputs of each weight; `heads` if they are those of some heads in q, k and v, which are one weight.
    Column { heads: Option<usize> },
    /// A rank has some heads.
    Heads,
    /// A rank has some of the `width` numbers of each of `rows` rows.
    Narrow { rows: usize, width: usize },
    /// A rank has some inputs; `heads` if they are those of some heads.
    Row { heads: Option<usize> },
    /// A rank has some rows of the table.
    Vocabulary,
}

/// How the `size` ranks of a tensor axis share a network.
#[derive(Clone, Debug)]
pub struct TensorSplit {
    size: usize,
    roles: Vec<Role>,
    /// For each parameter of the whole network: its layer, and its name, shape and range.
    params: Vec<(usize, ParamSpec)>,
    /// How the ranks share the positions of the other layers, if they do.
    sequence: Option<SequenceSplit>,
}

/// The part of `units` that rank `index` of `size` has.
fn share(units: usize, index: usize, size: usize) -> Range<usize> {
    units * index / size..units * (index + 1) / size
}

/// The role of each layer.
fn roles<F: Float>(network: &Network<F>) -> Vec<Role> {
    let operations: Vec<LayerOperation> = network.layers.iter().map(|layer| layer.operation()).collect();
    let mut roles = vec![Role::Whole; operations.len()];
    // A layer of several tensors of weights and biases, such as BERT's queries, keys and values, is not cut.
    let in_parts = |l: usize| {
        let reader = only_reader(network, l).map(|reader| &operations[reader]);
        matches!(reader, Some(LayerOperation::Rope(_) | LayerOperation::Swiglu { .. }))
    };
    let has_own = |l: usize| {
        let few = network.layers[l].params().len() <= 2 || in_parts(l);
        !network.spans[l].tied && !network.shares(l) && few
    };
    for first in 0..operations.len() {
        if roles[first] != Role::Whole || !has_own(first) {
            continue;
        }
        let LayerOperation::Linear { rows, outputs: width, .. } = operations[first] else { continue };
        let (mut between, mut with_heads, mut heads, mut at) = (Vec::new(), Vec::new(), None, first);
        while let Some(next) = only_reader(network, at) {
            match operations[next] {
                LayerOperation::Relu | LayerOperation::Gelu if heads.is_none() => between.push(next),
                LayerOperation::Swiglu { .. } if at == first => between.push(next),
                LayerOperation::Rope(_) if at == first => with_heads.push(next),
                LayerOperation::Attention { heads: own, .. } if at == first || with_heads == [at] => {
                    with_heads.push(next);
                    heads = Some(own);
                }
                LayerOperation::Linear { .. } if has_own(next) => {
                    roles[first] = Role::Column { heads: heads.filter(|_| !in_parts(first)) };
                    between.iter().for_each(|l| roles[*l] = Role::Narrow { rows, width });
                    with_heads.iter().for_each(|l| roles[*l] = Role::Heads);
                    roles[next] = Role::Row { heads };
                    break;
                }
                _ => break,
            }
            at = next;
        }
    }
    let last = operations.len() - 1;
    let sharer = |l: usize| network.spans[l].params == network.spans[last].params && l != last;
    let owners: Vec<usize> =
        (0..last).filter(|l| sharer(*l) && !network.spans[last].params.is_empty()).collect();
    let tied = owners.iter().all(|l| matches!(operations[*l], LayerOperation::Embedding { .. }));
    if matches!(operations[last], LayerOperation::Linear { .. }) && roles[last] == Role::Whole && tied {
        roles[last] = Role::Column { heads: None };
    }
    for (l, operation) in operations.iter().enumerate() {
        let cut = has_own(l) || owners == [l] && roles[last] != Role::Whole;
        if matches!(operation, LayerOperation::Embedding { .. }) && cut {
            roles[l] = Role::Vocabulary;
        }
    }
    roles
}

/// The only layer that reads the output of layer `l`, if it reads nothing else.
fn only_reader<F: Float>(network: &Network<F>, l: usize) -> Option<usize> {
    let mut readers = (0..network.layers.len()).filter(|reader| network.from[*reader].contains(&(l + 1)));
    let reader = readers.next()?;
    (readers.next().is_none() && network.from[reader].len() == 1).then_some(reader)
}

/// Refuses layers that `size` ranks cannot share.
fn check<F: Float>(network: &Network<F>, roles: &[Role], size: usize) -> Result<()> {
    if roles.iter().all(|role| *role == Role::Whole) {
        return Err(Error::Config(
            "tensor parallelism cuts linear layers, attention and embeddings, and the network has none that can be cut"
                .into(),
        ));
    }
    for (l, role) in roles.iter().enumerate() {
        let name = &network.names[l];
        let (units, what) = match (role, network.layers[l].operation()) {
            (Role::Heads, LayerOperation::Attention { heads, kv_heads, .. }) if heads == kv_heads => {
                (heads, "heads")
            }
            (Role::Heads, LayerOperation::Attention { kv_heads, .. }) => (kv_heads, "heads of keys"),
            (Role::Column { heads: None }, LayerOperation::Linear { outputs, .. }) => (outputs, "outputs"),
            (Role::Vocabulary, LayerOperation::Embedding { rows, .. }) => (rows, "rows"),
            _ => continue,
        };
        if *role == Role::Heads && !units.is_multiple_of(size) {
            let hint = match (2..=units)
                .rev()
                .find(|fewer| size.is_multiple_of(*fewer) && units.is_multiple_of(*fewer))
            {
                Some(fewer) => format!("such as {fewer}"),
                None => format!("which no divisor of {size} but 1 does"),
            };
            return Err(Error::Config(format!(
                "{size} ranks cannot share the {units} {what} of layer `{name}` evenly; let `parallel.tensor` divide {units}, {hint}"
            )));
        }
        if units < size {
            return Err(Error::Config(format!(
                "layer `{name}` has {units} {what}, too few for {size} ranks; let `parallel.tensor` be {units} at most"
            )));
        }
    }
    Ok(())
}

impl TensorSplit {
    /// How `size` ranks, 2 or more, share `network`.
    ///
    /// # Errors
    /// A network of which nothing can be cut, heads that `size` does not divide, or a layer with fewer outputs or rows than ranks.
    pub fn of<F: Float>(network: &Network<F>, size: usize) -> Result<TensorSplit> {
        let roles = roles(network);
        check(network, &roles, size)?;
        let layer_of = |param: usize| {
            let owns = |l: &usize| !network.spans[*l].tied && network.spans[*l].params.contains(&param);
            (0..network.layers.len()).find(owns).unwrap_or_default()
        };
        let params = (network.params.iter().enumerate()).map(|(param, spec)| (layer_of(param), spec.clone()));
        Ok(TensorSplit { size, roles, params: params.collect(), sequence: None })
    }

    /// This split with the positions of all layers outside of tensor-parallel blocks shared too, for the network that the split was
    /// made of: sequence parallelism.
    ///
    /// # Errors
    /// A layer that cannot be cut by positions, or positions that the ranks do not divide.
    pub fn sharing_positions<F: Float>(mut self, network: &Network<F>) -> Result<TensorSplit> {
        let block = |role: &Role| match role {
            Role::Whole => Block::Between,
            Role::Column { .. } => Block::First,
            Role::Heads | Role::Narrow { .. } => Block::Inside,
            Role::Row { .. } | Role::Vocabulary => Block::Last,
        };
        let blocks: Vec<Block> = self.roles.iter().map(block).collect();
        self.sequence = Some(SequenceSplit::of(network, self.size, &blocks)?);
        Ok(self)
    }

    /// The number of ranks of the axis.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether every rank has all of a parameter.
    pub fn is_whole(&self, param: usize) -> bool {
        let (layer, spec) = &self.params[param];
        match self.roles[*layer] {
            Role::Whole | Role::Heads | Role::Narrow { .. } => true,
            Role::Column { .. } | Role::Vocabulary => false,
            // Every rank adds the whole bias to the sum.
            Role::Row { .. } => spec.shape.len() == 1,
        }
    }

    /// Which elements of the whole network's parameters rank `index` has.
    pub fn layout(&self, index: usize) -> ParamLayout {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut add = |run: Range<usize>| runs.push(run);
        for (param, (layer, spec)) in self.params.iter().enumerate() {
            let start = spec.range.start;
            if self.is_whole(param) {
                add(spec.range.clone());
                continue;
            }
            let row = spec.shape.get(1).copied().unwrap_or(1);
            match self.roles[*layer] {
                Role::Row { heads } => {
                    let columns = self.units(heads, row, index);
                    (0..spec.shape[0]).for_each(|at| {
                        add(start + at * row + columns.start..start + at * row + columns.end);
                    });
                }
                Role::Column { heads: Some(heads) } => {
                    let width = spec.shape[0] / 3;
                    let rows = self.units(Some(heads), width, index);
                    (0..3).for_each(|block| {
                        let first = start + block * width * row;
                        add(first + rows.start * row..first + rows.end * row);
                    });
                }
                _ => {
                    let rows = self.units(None, spec.shape[0], index);
                    add(start + rows.start * row..start + rows.end * row);
                }
            }
        }
        ParamLayout::of(runs.into_iter(), self.params.last().map_or(0, |(_, spec)| spec.range.end))
    }

    /// The part that rank `index` has of `units`, which are cut between heads if there are any.
    fn units(&self, heads: Option<usize>, units: usize, index: usize) -> Range<usize> {
        let Some(heads) = heads else { return share(units, index, self.size) };
        let (own, width) = (share(heads, index, self.size), units / heads);
        own.start * width..own.end * width
    }

    /// Rank `index`'s part of `network`, the network that the split was made of.
    ///
    /// # Errors
    /// Never for that network.
    pub fn part<F: Float>(&self, network: Network<F>, index: usize) -> Result<Network<F>> {
        let (inputs, rows, classes) = (network.inputs(), network.rows, network.classes());
        let mut part = network.rebuilt(inputs, rows, |l, layer| self.layer(l, index, layer))?;
        let last = self.roles.last().copied().unwrap_or(Role::Whole);
        if matches!(last, Role::Column { .. }) {
            let first = share(classes, index, self.size).start;
            part.class_split = Some(ClassSplit { first, total: classes });
        }
        Ok(part)
    }

    /// The layer that rank `index` has in place of layer `l`; `None` if it has the same layer.
    fn layer<F: Float>(&self, l: usize, index: usize, whole: &dyn Layer<F>) -> Option<Box<dyn Layer<F>>> {
        let part = |heads, units| self.units(heads, units, index).len();
        let sharers = self.sequence.map_or(1, |sequence| sequence.size);
        Some(match (self.roles[l], &whole.operation()) {
            (Role::Whole, _) => return self.sequence?.layer(index, whole),
            (Role::Column { heads }, &LayerOperation::Linear { rows, inputs, outputs, bias }) => {
                let weights = whole.params().into_iter().filter(|tensor| tensor.shape.len() == 2);
                let weights: Vec<_> =
                    weights.map(|tensor| (tensor.name, part(None, tensor.shape[0]))).collect();
                let outputs = match heads {
                    Some(_) => 3 * part(heads, outputs / 3),
                    None => weights.iter().map(|(_, outputs)| outputs).sum(),
                };
                let part = ParallelLinear::of_outputs(rows, (inputs, outputs), bias);
                let part = if weights.len() > 1 { part.in_unlike_parts(weights) } else { part };
                Box::new(part.sharing_positions(sharers))
            }
            (Role::Row { heads }, &LayerOperation::Linear { rows, inputs, outputs, bias }) => {
                let part = ParallelLinear::of_inputs(rows, (part(heads, inputs), outputs), bias);
                Box::new(part.sharing_positions(sharers))
            }
            (Role::Heads, LayerOperation::Rope(shape)) => {
                let (heads, width) = (shape.heads / self.size, shape.width / self.size);
                Box::new(Rope::new(RopeShape { heads, width, ..*shape }))
            }
            (
                Role::Heads,
                &LayerOperation::Attention { positions, width, heads, kv_heads, causal, dropped, .. },
            ) => {
                let own = share(heads, index, self.size);
                let (width, kv_heads) = (part(Some(heads), width), kv_heads / self.size);
                let shape = AttentionShape { positions, width, heads: own.len(), kv_heads, causal };
                Box::new(Attention::new(shape).dropping(dropped).from_head(own.start))
            }
            (Role::Narrow { rows, width }, LayerOperation::Relu) => {
                Box::new(Relu::new(rows * part(None, width)))
            }
            (Role::Narrow { rows, .. }, LayerOperation::Swiglu { width, .. }) => {
                Box::new(Swiglu::new(rows, part(None, *width)))
            }
            (Role::Narrow { rows, width }, _) => Box::new(Gelu::new(rows * part(None, width))),
            (Role::Vocabulary, &LayerOperation::Embedding { positions, rows, width }) => {
                let own = self.units(None, rows, index);
                Box::new(VocabParallelEmbedding::new(positions, own, width).sharing_positions(sharers))
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Gpt, Llama, gpt, llama, mlp};

    fn small(heads: usize, attention_dropout: f64) -> Network<f32> {
        let parts = Gpt {
            vocabulary: 13,
            positions: 4,
            layers: 2,
            width: 24,
            heads,
            dropout: 0.1,
            attention_dropout,
            tied: true,
        };
        gpt(&parts).unwrap()
    }

    const LLAMA: Llama = Llama {
        vocabulary: 13,
        positions: 4,
        layers: 2,
        width: 24,
        heads: 12,
        kv_heads: 6,
        ffn: 20,
        rope_base: 100.0,
        attention_dropout: 0.0,
        tied: false,
    };

    /// Every element of a parameter that is cut is on one rank, and every rank has all other parameters.
    #[test]
    fn the_ranks_elements_make_the_whole() {
        let networks: [fn() -> Network<f32>; 3] =
            [|| small(6, 0.0), || mlp(10, &[8, 7, 9], 5).unwrap(), || llama(&LLAMA).unwrap()];
        for network in networks {
            for size in [2, 3] {
                let (whole, split) = (network(), TensorSplit::of(&network(), size).unwrap());
                let numbers: Vec<usize> = (0..whole.param_count()).collect();
                let (mut held, mut back) = (vec![0; numbers.len()], vec![usize::MAX; numbers.len()]);
                for index in 0..size {
                    let (layout, part) = (split.layout(index), split.part(network(), index).unwrap());
                    let own = layout.take(&numbers);
                    assert_eq!((own.len(), part.param_count()), (layout.part(), layout.part()));
                    own.iter().for_each(|at| held[*at] += 1);
                    let middle = own.len() / 3;
                    layout.put(0, &own[..middle], &mut back);
                    layout.put(middle, &own[middle..], &mut back);
                    let names = |network: &Network<f32>| -> Vec<String> {
                        network.params().iter().map(|place| place.name.clone()).collect()
                    };
                    assert_eq!(names(&part), names(&whole));
                }
                assert_eq!(back, numbers);
                for (param, place) in whole.params().iter().enumerate() {
                    let times = if split.is_whole(param) { size } else { 1 };
                    assert!(held[place.range.clone()].iter().all(|held| *held == times), "{}", place.name);
                }
            }
        }
    }

    #[test]
    fn the_ranks_cut_the_layers_at_the_same_places() {
        let split = TensorSplit::of(&small(6, 0.0), 3).unwrap();
        let chunks = |index| split.part(small(6, 0.0), index).unwrap().outline().chunks(4).unwrap();
        assert_eq!(chunks(0), small(6, 0.0).outline().chunks(4).unwrap());
        assert!((1..3).all(|index| chunks(index) == chunks(0)));
    }

    #[test]
    fn what_ranks_cannot_share_is_refused() {
        let refused = |network: Network<f32>, size| TensorSplit::of(&network, size).unwrap_err().to_string();
        let heads = refused(small(6, 0.0), 4);
        assert!(heads.contains("4 ranks cannot share the 6 heads") && heads.contains("divide 6"), "{heads}");
        let shared = refused(llama(&LLAMA).unwrap(), 4);
        assert!(shared.contains("4 ranks cannot share the 6 heads of keys of layer"), "{shared}");
        let few = refused(mlp(10, &[8, 3], 5).unwrap(), 9);
        assert!(few.contains("layer `fc1` has 8 outputs, too few for 9 ranks"), "{few}");
    }
}
