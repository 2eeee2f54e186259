//! The layout of values between layers: the element type, and whether pictures have their channels last.
//!
//! If the configuration requests channels last, convolutions use that layout, and the layers after a convolution keep it as far as
//! they can. A layer that needs planes (a linear layer over pixels, dropout with the CPU's draws) transposes its input. Filters are
//! stored with channels last too, as `[K, R, R, C / G]`, so that no step transposes them.

use crate::Result;
use allfold_cuda::launch::{self, TensorLayout};
use allfold_cuda::{Memory, Queue, Slice};
use allfold_kernels::DType;
use allfold_networks::Network;
use allfold_networks::layers::LayerOperation;

/// Channels and pixels of a sample whose channels are the last dimension; `None` for the network's layout, in planes.
pub type ChannelsLast = Option<(usize, usize)>;

/// The type and the layout of an activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorFormat {
    /// The element type.
    pub dtype: DType,
    /// Whether pictures have their channels last.
    pub channels_last: ChannelsLast,
}

impl TensorFormat {
    /// The layout in the kernels' type.
    pub fn layout(self) -> TensorLayout {
        if self.channels_last.is_some() { TensorLayout::ChannelsLast } else { TensorLayout::Planes }
    }

    /// Converts `x` from this format to `wanted`. Returns `None` if both formats are the same.
    pub fn to(self, wanted: TensorFormat, x: Slice<'_>, queue: &Queue) -> Result<Option<Memory>> {
        let n = x.len() / self.dtype.size();
        let mut made: Option<Memory> = None;
        if self.dtype != wanted.dtype {
            let cast = queue.memory(n * wanted.dtype.size())?;
            launch::cast(queue, (self.dtype, x), (wanted.dtype, cast.all()), 1.0)?;
            made = Some(cast);
        }
        let turn = match (self.channels_last, wanted.channels_last) {
            (None, Some((channels, pixels))) => Some((channels, pixels)),
            (Some((channels, pixels)), None) => Some((pixels, channels)),
            _ => None,
        };
        if let Some(shape) = turn {
            let turned = queue.memory(n * wanted.dtype.size())?;
            let from = made.as_ref().map_or(x, Memory::all);
            launch::transpose(queue, wanted.dtype, turned.all(), from, shape)?;
            made = Some(turned);
        }
        Ok(made)
    }
}

/// The layout of each layer's inputs, and the layout of each activation; activation 0 is the network's input.
pub(crate) fn layouts(
    network: &Network<f32>,
    operations: &[LayerOperation],
    channels_last: bool,
) -> (Vec<ChannelsLast>, Vec<ChannelsLast>) {
    let (mut layers, mut acts): (Vec<ChannelsLast>, Vec<ChannelsLast>) = (Vec::new(), vec![None]);
    for (l, operation) in operations.iter().enumerate() {
        let first = acts[network.from(l)[0]];
        let (reads, writes) = match operation {
            LayerOperation::Conv { shape, .. } if channels_last => {
                let (p, q) = shape.output_picture();
                (Some((shape.inputs, shape.picture.0 * shape.picture.1)), Some((shape.outputs, p * q)))
            }
            LayerOperation::BatchNorm { .. } | LayerOperation::Relu | LayerOperation::Gelu => (first, first),
            LayerOperation::Add if network.from(l).iter().all(|&from| acts[from] == first) => (first, first),
            LayerOperation::MaxPool(shape) | LayerOperation::MeanPool(shape) if first.is_some() => {
                let (p, q) = shape.output_picture();
                (first, Some((shape.channels, p * q)))
            }
            LayerOperation::GlobalMeanPool { .. } => (first, None),
            _ => (None, None),
        };
        layers.push(reads);
        acts.push(writes);
    }
    (layers, acts)
}

/// For each parameter that is a filter stored with channels last: its number of channels and of pixels. `None` for others.
pub(crate) fn filters(
    network: &Network<f32>,
    operations: &[LayerOperation],
    channels_last: bool,
) -> Vec<ChannelsLast> {
    let mut filters = vec![None; network.params().len()];
    for (l, operation) in operations.iter().enumerate().filter(|_| channels_last) {
        if let LayerOperation::Conv { shape, .. } = operation {
            let param = network.params_of(l).start;
            filters[param] = Some((shape.inputs / shape.groups, shape.kernel * shape.kernel));
        }
    }
    filters
}

/// Transposes each of several `rows` by `columns` matrices that are stored one after another.
pub fn turned(values: &[f32], (rows, columns): (usize, usize)) -> Vec<f32> {
    let mut turned = Vec::with_capacity(values.len());
    for matrix in values.chunks_exact((rows * columns).max(1)) {
        turned.extend((0..columns).flat_map(|c| (0..rows).map(move |r| matrix[r * columns + c])));
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_kernels::nn::Conv2dShape;
    use allfold_networks::Builder;
    use allfold_networks::layers::{BatchNorm, Conv2d, GlobalMeanPool, LayerNorm, Linear, Relu};

    #[test]
    fn channels_last_goes_from_the_first_convolution_as_far_as_layers_keep_it() {
        let shape = |inputs| Conv2dShape {
            inputs,
            outputs: 4,
            picture: (5, 5),
            kernel: 3,
            stride: 1,
            padding: 1,
            groups: 1,
        };
        let mut builder = Builder::<f32>::new(2 * 25);
        let a = builder.push("norm", LayerNorm::new(2, 25), &[0]).unwrap();
        let b = builder.push("conv1", Conv2d::new(shape(2)), &[a]).unwrap();
        let c = builder.push("bn", BatchNorm::new(4, 25), &[b]).unwrap();
        let d = builder.push("relu", Relu::new(100), &[c]).unwrap();
        let e = builder.push("conv2", Conv2d::new(shape(4)), &[d]).unwrap();
        let f = builder.push("ln", LayerNorm::new(4, 25), &[e]).unwrap();
        let g = builder.push("mean", GlobalMeanPool::new(4, 25), &[f]).unwrap();
        builder.push("fc", Linear::new(4, 3), &[g]).unwrap();
        let network = builder.build(1).unwrap();
        let operations: Vec<_> = network.layers().iter().map(|layer| layer.operation()).collect();
        let (reads, acts) = layouts(&network, &operations, true);
        let kept = network.names().iter().zip(&reads).filter(|(_, last)| last.is_some());
        let kept: Vec<&str> = kept.map(|(name, _)| &**name).collect();
        assert_eq!(kept, ["conv1", "bn", "relu", "conv2"]);
        assert_eq!((acts[1], acts[2], acts[5]), (None, Some((4, 25)), Some((4, 25))));
        assert!(layouts(&network, &operations, false).1.iter().all(Option::is_none));
    }
}
