//! Batch norms that are computed together with the rectifier behind them, and with the residual sum in between.
//!
//! ```text
//! x -norm-relu-> y            one pass over x and y; backward, the rectifier's mask is computed again from x
//! x -norm-+-relu-> y          one pass over x, the other summand and y; backward, the rectifier's gradient, the gradient's own sum
//!         other               over two readers of y, and the sums of the norm's parameters are one pass
//! ```
//!
//! The layers' phases stay. The forward pass computes nothing of the norm but its statistics, and all else at the rectifier; every
//! operation rounds to the tensors' type as it does alone, so results have the same bits.

use super::precision::TensorFormats;
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
}

/// Finds what can be fused: each tensor inside has one reader, all have one format, and no layer runs again in the backward pass.
pub(crate) fn fusions(
    network: &Network<f32>,
    operations: &[LayerOperation],
    formats: &TensorFormats,
) -> Vec<Fusion> {
    let mut fusions = vec![Fusion::Alone; operations.len()];
    let readers =
        |act: usize| (0..operations.len()).flat_map(|l| network.from(l)).filter(|from| **from == act).count();
    // The batch norm whose output is `act`, if the next layer alone reads it.
    let norm_of = |act: usize| {
        let norm = act.checked_sub(1)?;
        let is_norm = matches!(operations[norm], LayerOperation::BatchNorm { .. });
        (is_norm && readers(act) == 1 && formats.reads(norm) == formats.act(act)).then_some(norm)
    };
    for relu in 0..operations.len() {
        if operations[relu] != LayerOperation::Relu {
            continue;
        }
        let from = network.from(relu)[0];
        let (norm, other) = match from.checked_sub(1).map(|before| &operations[before]) {
            Some(LayerOperation::Add) if readers(from) == 1 => {
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
    fusions
}
