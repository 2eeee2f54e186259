//! How much the gradients with respect to activations hold in a backward pass.

use super::Network;
use allfold_kernels::nn::Float;

/// The most numbers per sample that gradients with respect to activations hold at one time of the backward pass: from the last
/// layer that reads an activation to the layer that made it.
pub(super) fn gradients_held<F: Float>(network: &Network<F>) -> u128 {
    let outputs = |act: usize| network.layers[act - 1].outputs() as u128;
    let mut held = vec![false; network.layers.len() + 1];
    held[network.layers.len()] = true;
    let mut now = outputs(network.layers.len());
    let mut most = now;
    for (l, layer) in network.layers.iter().enumerate().rev() {
        // A gathered gradient is held in addition to this rank's part of it.
        let gathers = layer.gradient_len() > layer.outputs();
        let gathered = if gathers { layer.gradient_len() as u128 } else { 0 };
        for &from in network.from(l) {
            if from > 0 && !std::mem::replace(&mut held[from], true) {
                now += outputs(from);
            }
        }
        most = most.max(now + gathered);
        if held[l + 1] {
            now -= outputs(l + 1);
        }
    }
    most
}
