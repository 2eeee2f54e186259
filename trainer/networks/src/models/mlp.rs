//! Fully connected layers with rectifiers between them.
//!
//! ```text
//! 784 -> fc1 -> relu -> 128 -> fc2 -> 10 logits
//! ```

use crate::Result;
use crate::layers::{Layer, Linear, Relu};
use crate::network::Network;
use allfold_kernels::nn::Float;

/// A network from `inputs` numbers through layers of `hidden` widths to `classes` logits.
///
/// # Errors
/// Never: the layers fit by construction. The signature is that of every model.
pub fn mlp<F: Float>(inputs: usize, hidden: &[usize], classes: usize) -> Result<Network<F>> {
    let mut layers: Vec<(String, Box<dyn Layer<F>>)> = Vec::new();
    let mut width = inputs;
    for (i, &next) in hidden.iter().enumerate() {
        layers.push((format!("fc{}", i + 1), Box::new(Linear::new(width, next))));
        layers.push((format!("relu{}", i + 1), Box::new(Relu::new(next))));
        width = next;
    }
    layers.push((format!("fc{}", hidden.len() + 1), Box::new(Linear::new(width, classes))));
    Network::new(layers)
}
