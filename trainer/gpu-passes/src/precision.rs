//! The element types of layers and activations under autocast, by the lists of [`allfold_networks::amp`].

use super::layout::{ChannelsLast, TensorFormat, layouts};
use allfold_kernels::DType;
use allfold_networks::Network;
use allfold_networks::amp::Cast;
use allfold_networks::layers::LayerOperation;

/// The types of a network's tensors on a device. Parameters and their gradients are f32, whatever type the layer computes in.
pub struct TensorFormats {
    /// Autocast's narrow type, if there is one.
    pub narrow: Option<DType>,
    /// For each layer, the type of its inputs and of their gradients, and of its outputs unless `acts` has another.
    pub layers: Vec<DType>,
    /// The type of each activation, of which 0 is the network's input.
    pub acts: Vec<DType>,
    /// The layout of each layer's inputs, then the layout of each activation.
    layouts: (Vec<ChannelsLast>, Vec<ChannelsLast>),
}

impl TensorFormats {
    /// The types of a network's tensors; with `narrow` under autocast.
    pub fn new(
        network: &Network<f32>,
        narrow: Option<DType>,
        operations: &[LayerOperation],
        channels_last: bool,
    ) -> TensorFormats {
        let (mut layers, mut acts) = (Vec::new(), vec![DType::F32]);
        for (l, layer) in network.layers().iter().enumerate() {
            let follows = network.from(l).iter().all(|&from| acts[from] != DType::F32);
            let dtype = match (layer.traits().cast, narrow) {
                (Cast::Narrow, Some(narrow)) => narrow,
                (Cast::Follow, Some(narrow)) if follows => narrow,
                _ => DType::F32,
            };
            layers.push(dtype);
            acts.push(dtype);
        }
        // A layer norm in f32 writes the narrow type itself, if all its readers read that.
        for (l, operation) in operations.iter().enumerate() {
            let readers = || (0..operations.len()).filter(|reader| network.from(*reader).contains(&(l + 1)));
            if let (Some(narrow), LayerOperation::LayerNorm { .. }) = (narrow, operation)
                && readers().next().is_some()
                && readers().all(|reader| layers[reader] == narrow)
            {
                acts[l + 1] = narrow;
            }
        }
        TensorFormats { narrow, layers, acts, layouts: layouts(network, operations, channels_last) }
    }

    /// The format in which a layer reads its inputs.
    pub fn reads(&self, layer: usize) -> TensorFormat {
        TensorFormat { dtype: self.layers[layer], channels_last: self.layouts.0[layer] }
    }

    /// The format of an activation.
    pub fn act(&self, act: usize) -> TensorFormat {
        TensorFormat { dtype: self.acts[act], channels_last: self.layouts.1[act] }
    }

    /// Whether a layer reads its weights in the narrow type.
    pub fn narrows(&self, network: &Network<f32>, layer: usize) -> bool {
        self.narrow.is_some() && network.layers()[layer].traits().cast == Cast::Narrow
    }
}
