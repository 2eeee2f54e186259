//! Layers that are computed together: batch norms with the rectifier behind them, and with the residual sum in between; layer norms with
//! the residual sum before them; GELU with the linear layers around it.
//!
//! ```text
//! x -norm-relu-> y            one pass over x and y; backward, the rectifier's mask is computed again from x
//! x -norm-+-relu-> y          one pass over x, the other summand and y; backward, the rectifier's gradient, the gradient's own sum
//!         other               over two readers of y, and the sums of the norm's parameters are one pass
//! x -+-norm->                 the sum and its layer norm are one pass over both summands, if one of them is narrow
//! x -linear-gelu-linear->     GELU is computed by the first product, and its gradient by the second layer's
//! ```
//!
//! The layers' phases stay. The forward pass computes nothing of the norm but its statistics, and all else at the rectifier; every
//! operation of these rounds to the tensors' type as it does alone, so results have the same bits. A library that computes GELU in a
//! product does not round the product before.

use super::precision::TensorFormats;
use allfold_kernels::DType;
use allfold_networks::layers::LayerOperation;
use allfold_networks::{Network, NetworkTensors};

/// How a layer takes part in a fused computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fusion {
    /// The layer is computed alone.
    #[default]
    Alone,
    /// A batch norm whose output exists only inside the fused computation; its gradient arrives before the rectifier's mask if
    /// `masks` is true.
    Norm { masks: bool },
    /// The sum between a batch norm and a rectifier.
    Sum,
    /// A rectifier that computes what batch norm `norm` left, and adds activation `other`.
    Relu { norm: usize, other: Option<usize> },
    /// A residual sum that the layer norm behind it computes.
    BeforeNorm,
    /// A layer norm of the residual sum before it; its backward pass also rounds the sum's gradient for the narrow summand.
    AfterSum,
    /// A linear layer that also computes the GELU behind it.
    BeforeGelu,
    /// A GELU that the layers before and behind it compute.
    Gelu,
    /// A linear layer whose input gradient is that of the GELU before it.
    AfterGelu,
}

/// Finds what can be fused: each tensor inside has one reader, all have one format, and no layer runs again in the backward pass.
pub(crate) fn fusions(
    network: &Network<f32>,
    operations: &[LayerOperation],
    formats: &TensorFormats,
) -> Vec<Fusion> {
    let mut fusions = vec![Fusion::Alone; operations.len()];
    batch_norms(network, operations, formats, &mut fusions);
    layer_norms(network, operations, formats, &mut fusions);
    gelus(network, operations, formats, &mut fusions);
    fusions
}

/// How many layers read activation `act`.
fn readers(network: &Network<f32>, act: usize) -> usize {
    (0..network.layers().len()).flat_map(|l| network.from(l)).filter(|from| **from == act).count()
}

fn batch_norms(
    network: &Network<f32>,
    operations: &[LayerOperation],
    formats: &TensorFormats,
    fusions: &mut [Fusion],
) {
    // The batch norm whose output is `act`, if the next layer alone reads it.
    let norm_of = |act: usize| {
        let norm = act.checked_sub(1)?;
        let is_norm = matches!(operations[norm], LayerOperation::BatchNorm { .. });
        (is_norm && readers(network, act) == 1 && formats.reads(norm) == formats.act(act)).then_some(norm)
    };
    for relu in 0..operations.len() {
        if operations[relu] != LayerOperation::Relu {
            continue;
        }
        let from = network.from(relu)[0];
        let (norm, other) = match from.checked_sub(1).map(|before| &operations[before]) {
            Some(LayerOperation::Add) if readers(network, from) == 1 => {
                let [first, second] = *network.from(from - 1) else { continue };
                (norm_of(first), Some(second))
            }
            _ => (norm_of(from), None),
        };
        let Some(norm) = norm else { continue };
        let inside = [norm, from - 1, relu];
        let formed = [Some(norm + 1), Some(from), Some(relu + 1), other].into_iter().flatten();
        let same = formed.map(|act| formats.act(act)).all(|format| format == formats.reads(norm));
        if !same || inside.iter().any(|l| network.is_recomputed(*l)) {
            continue;
        }
        if other.is_some() {
            fusions[from - 1] = Fusion::Sum;
        }
        fusions[norm] = Fusion::Norm { masks: other.is_none() };
        fusions[relu] = Fusion::Relu { norm, other };
    }
}

fn layer_norms(
    network: &Network<f32>,
    operations: &[LayerOperation],
    formats: &TensorFormats,
    fusions: &mut [Fusion],
) {
    for norm in 1..operations.len() {
        let LayerOperation::LayerNorm { .. } = operations[norm] else { continue };
        let (add, thin) = (norm - 1, formats.act(norm + 1));
        let [first, second] = *network.from(add) else { continue };
        let wide = formats.reads(norm);
        let same = [formats.act(first), formats.reads(add), formats.act(norm)].iter().all(|is| *is == wide);
        if operations[add] == LayerOperation::Add
            && network.from(norm) == [norm]
            && same
            && formats.act(second) == thin
            && (wide.dtype, wide.channels_last) == (DType::F32, thin.channels_last)
            && thin.dtype != DType::F32
            && ![add, norm].iter().any(|l| network.is_recomputed(*l))
            // The end of a recomputed block, whose summands are dropped before the norm runs.
            && !network.ends_recomputed(add)
        {
            (fusions[add], fusions[norm]) = (Fusion::BeforeNorm, Fusion::AfterSum);
        }
    }
}

fn gelus(
    network: &Network<f32>,
    operations: &[LayerOperation],
    formats: &TensorFormats,
    fusions: &mut [Fusion],
) {
    for gelu in 1..operations.len().saturating_sub(1) {
        let around = [gelu - 1, gelu, gelu + 1];
        let is_linear = |l: usize| matches!(operations[l], LayerOperation::Linear { .. });
        let in_turn = [gelu, gelu + 1].iter().all(|l| network.from(*l) == [*l] && readers(network, *l) == 1);
        let same =
            around.iter().all(|l| formats.reads(*l) == formats.reads(gelu) && !network.is_recomputed(*l));
        let narrow = [gelu, gelu + 1].iter().all(|act| formats.act(*act) == formats.reads(gelu));
        if operations[gelu] == LayerOperation::Gelu
            && is_linear(gelu - 1)
            && is_linear(gelu + 1)
            && in_turn
            && same
            && narrow
            && formats.layers[gelu] != DType::F32
        {
            (fusions[gelu - 1], fusions[gelu]) = (Fusion::BeforeGelu, Fusion::Gelu);
            fusions[gelu + 1] = Fusion::AfterGelu;
        }
    }
}

/// The distance of rows of logits in elements, if it is not the number of classes: rows of 16-bit logits begin at words of 16 bytes, which
/// tensor cores read; otherwise 0.
pub(crate) fn logits_apart(operations: &[LayerOperation], formats: &TensorFormats) -> usize {
    match (operations.last(), formats.layers.last()) {
        (Some(LayerOperation::Linear { outputs, bias: false, .. }), Some(dtype))
            if dtype.size() == 2 && !outputs.is_multiple_of(8) =>
        {
            outputs.next_multiple_of(8)
        }
        _ => 0,
    }
}
