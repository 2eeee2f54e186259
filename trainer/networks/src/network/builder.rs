//! Builds a network layer by layer, or from another network.

use super::{Network, ParamSpec, Spans};
use crate::layers::Layer;
use crate::{Error, Result};
use allfold_kernels::nn::{Float, LossKind};
use std::ops::Range;

/// A network under construction.
pub struct Builder<F> {
    network: Network<F>,
    inputs: usize,
}

impl<F: Float> Builder<F> {
    /// Begins a network with `inputs` numbers per sample, which are activation 0.
    pub fn new(inputs: usize) -> Builder<F> {
        let network = Network {
            layers: Vec::new(),
            names: Vec::new(),
            from: Vec::new(),
            storages: Vec::new(),
            params: Vec::new(),
            buffers: Vec::new(),
            spans: Vec::new(),
            frozen: Vec::new(),
            rows: 1,
            loss: LossKind::default(),
            costs: None,
            class_split: None,
            recomputed: Vec::new(),
        };
        Builder { network, inputs }
    }

    /// Adds a layer that reads these activations. Returns the activation that the layer writes.
    ///
    /// # Errors
    /// If the layer's input size differs from the size of one of the activations.
    pub fn push(&mut self, name: &str, layer: impl Layer<F> + 'static, from: &[usize]) -> Result<usize> {
        self.add(name, Box::new(layer), from, None)
    }

    /// Adds a layer that shares the parameters of the layer that writes activation `owner`; the parameters keep that layer's names
    /// and layout.
    ///
    /// # Errors
    /// If the layer's input size differs from that of `from`, or its number of weights from the other layer's.
    pub fn push_tied(
        &mut self,
        name: &str,
        layer: impl Layer<F> + 'static,
        from: &[usize],
        owner: usize,
    ) -> Result<usize> {
        self.add(name, Box::new(layer), from, Some(owner))
    }

    pub(super) fn add(
        &mut self,
        name: &str,
        layer: Box<dyn Layer<F>>,
        from: &[usize],
        owner: Option<usize>,
    ) -> Result<usize> {
        let network = &mut self.network;
        for &from in from {
            let (before, gives) = match from.checked_sub(1) {
                None => ("the input", self.inputs),
                Some(before) => (&*network.names[before], network.layers[before].outputs()),
            };
            let takes = layer.inputs();
            if gives != takes {
                return Err(Error::Network(format!(
                    "{before} outputs {gives} numbers per sample but layer {name} takes {takes}"
                )));
            }
        }
        let spans = match owner {
            None => {
                let first = network.params.len();
                let values = lay_out(&mut network.params, name, layer.params());
                let buffers = lay_out(&mut network.buffers, name, layer.buffers());
                network.frozen.resize(network.params.len(), false);
                Spans { params: first..network.params.len(), values, buffers, tied: false }
            }
            Some(owner) => {
                let spans = &network.spans[owner - 1];
                let elements: usize = layer.params().iter().map(crate::layers::Tensor::len).sum();
                if elements != spans.values.len() {
                    let has = spans.values.len();
                    return Err(Error::Network(format!(
                        "layer {name} needs {elements} weights and the layer that it shares them with has {has}"
                    )));
                }
                let end = network.buffers.last().map_or(0, |last| last.range.end);
                Spans {
                    params: spans.params.clone(),
                    values: spans.values.clone(),
                    buffers: end..end,
                    tied: true,
                }
            }
        };
        network.spans.push(spans);
        network.names.push(name.into());
        network.from.push(from.to_vec());
        network.layers.push(layer);
        Ok(network.layers.len())
    }

    /// The network, which gives `rows` rows of logits per sample.
    ///
    /// # Errors
    /// If it has no layer.
    pub fn build(mut self, rows: usize) -> Result<Network<F>> {
        if self.network.layers.is_empty() {
            return Err(Error::Network("a network needs at least one layer".into()));
        }
        self.network.rows = rows.max(1);
        self.network.storages = self.network.assign_storage();
        Ok(self.network)
    }
}

impl<F: Float> Network<F> {
    /// This network with some layers replaced by others with the same number of parameters, under the same names, between the same
    /// activations. The new network is cut into chunks at the same places.
    pub(super) fn rebuilt(
        self,
        inputs: usize,
        rows: usize,
        replace: impl Fn(usize, &dyn Layer<F>) -> Option<Box<dyn Layer<F>>>,
    ) -> Result<Network<F>> {
        let costs = self.layer_costs();
        let owner = |l: usize| {
            let owns =
                |other: &usize| !self.spans[*other].tied && self.spans[*other].params == self.spans[l].params;
            self.spans[l].tied.then(|| (0..l).find(owns).unwrap_or_default() + 1)
        };
        let owners: Vec<Option<usize>> = (0..self.layers.len()).map(owner).collect();
        let mut builder = Builder::new(inputs);
        for (l, layer) in self.layers.into_iter().enumerate() {
            let layer = replace(l, &*layer).unwrap_or(layer);
            builder.add(&self.names[l], layer, &self.from[l], owners[l])?;
        }
        let mut network = builder.build(rows)?;
        (network.frozen, network.loss, network.costs) = (self.frozen, self.loss, Some(costs));
        network.recomputed = self.recomputed;
        network.storages = network.assign_storage();
        Ok(network)
    }
}

/// Appends a layer's tensors to the flat layout. Returns the range of their elements.
fn lay_out(places: &mut Vec<ParamSpec>, layer: &str, tensors: Vec<crate::layers::Tensor>) -> Range<usize> {
    let start = places.last().map_or(0, |last| last.range.end);
    let mut end = start;
    for tensor in tensors {
        let range = end..end + tensor.len();
        end = range.end;
        let name = format!("{layer}.{}", tensor.name);
        places.push(ParamSpec { name, shape: tensor.shape, range, init: tensor.init });
    }
    start..end
}
