//! A small convolutional network for small pictures.
//!
//! ```text
//! [1, 8, 8] -> conv 3x3 -> norm -> relu -> [32, 8, 8] -> conv 3x3 -> norm -> relu -> [64, 8, 8]
//!           -> max pool 2x2 -> [64, 4, 4] -> linear -> 10 logits                   29,162 parameters
//! ```

use crate::layers::{BatchNorm, Conv2d, Layer, Linear, Pool, Relu};
use crate::network::Network;
use crate::{Error, Result};
use allfold_kernels::nn::{self, Float, PoolShape};

/// The parts of the network.
#[derive(Clone, Copy, Debug)]
pub struct Cnn<'a> {
    /// Channels, height and width of a sample.
    pub shape: (usize, usize, usize),
    /// Output channels of each block of convolution, batch norm and rectifier.
    pub channels: &'a [usize],
    /// Whether the blocks have a batch norm.
    pub batch_norm: bool,
    /// The number of classes.
    pub classes: usize,
}

/// Convolutions of 3x3 pixels that keep the picture's size, then one max pooling of 2x2 and a linear layer.
///
/// # Errors
/// If the picture is smaller than 2x2.
pub fn cnn<F: Float>(parts: &Cnn) -> Result<Network<F>> {
    let (mut inputs, height, width) = parts.shape;
    if height < 2 || width < 2 {
        return Err(Error::Network(format!(
            "the cnn pools 2x2 pixels; a picture of {height}x{width} is too small"
        )));
    }
    let (picture, plane) = ((height, width), height * width);
    let mut layers: Vec<(String, Box<dyn Layer<F>>)> = Vec::new();
    for (i, &outputs) in parts.channels.iter().enumerate() {
        let shape = nn::Conv2dShape { inputs, outputs, picture, kernel: 3, stride: 1, padding: 1, groups: 1 };
        layers.push((format!("conv{}", i + 1), Box::new(Conv2d::new(shape))));
        if parts.batch_norm {
            layers.push((format!("bn{}", i + 1), Box::new(BatchNorm::new(outputs, plane))));
        }
        layers.push((format!("relu{}", i + 1), Box::new(Relu::new(outputs * plane))));
        inputs = outputs;
    }
    let pool = PoolShape { channels: inputs, picture, window: 2, stride: 2, padding: 0 };
    let (rows, cols) = pool.output_picture();
    layers.push(("pool".into(), Box::new(Pool::max(pool))));
    layers.push(("fc".into(), Box::new(Linear::new(inputs * rows * cols, parts.classes))));
    Network::new(layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_network_has_29_162_parameters() {
        let parts = Cnn { shape: (1, 8, 8), channels: &[32, 64], batch_norm: true, classes: 10 };
        let network = cnn::<f32>(&parts).unwrap();
        assert_eq!(network.param_count(), 29_162);
        assert_eq!(network.buffer_count(), 2 * (32 + 64));
        assert_eq!(network.params()[1].name, "bn1.weight");
    }
}
