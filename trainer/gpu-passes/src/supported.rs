//! What the kernels cannot compute, which is refused before anything runs.

use crate::error::unsupported;
use crate::{Error, Result};
use allfold_kernels::DType;
use allfold_networks::Network;
use allfold_networks::layers::LayerOperation;

/// The error of a layer that has no kernel.
pub(crate) fn own(name: &str) -> Error {
    unsupported(format!("layer `{name}` has no GPU kernel; set device = \"cpu\""))
}

/// Refuses, before anything runs, a ring attention whose chunks would begin within a group of four draws, which 16-bit kernels draw at
/// once.
pub(crate) fn drops_whole_groups(
    network: &Network<f32>,
    l: usize,
    operation: &LayerOperation,
    dtype: DType,
) -> Result<()> {
    let LayerOperation::RingAttention { width, dropped, .. } = operation else { return Ok(()) };
    let chunk = network.layers()[l].outputs() / width.max(&1) / 2;
    if *dropped == 0.0 || dtype == DType::F32 || chunk.is_multiple_of(4) {
        return Ok(());
    }
    Err(unsupported(format!(
        "layer `{}` drops attention probabilities in {dtype}, for which a rank's two chunks, of {chunk} positions here, must be a \
         multiple of 4; change `data.positions` or the number of ranks, or leave out `model.attention_dropout` or `precision.amp`",
        network.names()[l]
    )))
}

/// Refuses, before anything runs, a layer that the kernels cannot do.
pub(crate) fn supported(name: &str, operation: &LayerOperation) -> Result<()> {
    match operation {
        LayerOperation::Own
        | LayerOperation::RmsNorm { .. }
        | LayerOperation::Rope(_)
        | LayerOperation::Swiglu { .. } => Err(own(name)),
        LayerOperation::Attention { heads, kv_heads, .. } if heads != kv_heads => Err(own(name)),
        LayerOperation::Attention { width, heads, .. }
        | LayerOperation::RingAttention { width, heads, .. }
            if width / (*heads).max(1) > 128 =>
        {
            let size = width / (*heads).max(1);
            Err(unsupported(format!(
                "layer `{name}` has heads of {size} columns; GPU kernels take at most 128: change `model.width` or `model.heads`"
            )))
        }
        LayerOperation::MeanPool(shape) if shape.padding > 0 => Err(unsupported(format!(
            "layer `{name}` is mean pooling over padding, for which there is no GPU kernel; set device = \"cpu\""
        ))),
        _ => Ok(()),
    }
}
