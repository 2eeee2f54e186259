//! VGG networks of 11, 13, 16 and 19 layers (K. Simonyan and A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
//! Recognition", ICLR 2015).
//!
//! ```text
//! features     stages of 64, 128, 256, 512, 512 channels: 1 to 4 blocks of conv 3x3 - bn - relu, then max pool 2x2
//! classifier   pictures of 224x224: linear 4096 - relu - dropout - linear 4096 - relu - dropout - linear
//!              small pictures: linear
//! ```
//!
//! Parameters of networks with the large classifier have torchvision's names and order, so that its weights can be loaded.

use crate::layers::{BatchNorm, Conv2d, Dropout, Init, Layer, Linear, Pool, Relu};
use crate::network::Network;
use crate::{Error, Result};
use allfold_kernels::nn::{self, Float, PoolShape};

/// The parts of the network.
#[derive(Clone, Copy, Debug)]
pub struct Vgg {
    /// The number of layers with weights: 11, 13, 16 or 19.
    pub layers: usize,
    /// Whether a batch norm follows each convolution.
    pub batch_norm: bool,
    /// Whether the classifier is that for pictures of 224x224, with two hidden layers of 4,096.
    pub large_classifier: bool,
    /// Dropout probability in the large classifier; torchvision's is 0.5.
    pub dropout: f64,
    /// Channels, height and width of a sample.
    pub shape: (usize, usize, usize),
    /// The number of classes.
    pub classes: usize,
}

/// Width of the hidden layers of the large classifier.
const HIDDEN: usize = 4096;

/// Builds the network.
///
/// # Errors
/// If there is no VGG with this number of layers, or the pictures do not fit the classifier.
pub fn vgg<F: Float>(parts: &Vgg) -> Result<Network<F>> {
    let blocks = match parts.layers {
        11 => [1, 1, 2, 2, 2],
        13 => [2; 5],
        16 => [2, 2, 3, 3, 3],
        19 => [2, 2, 4, 4, 4],
        other => {
            let what = format!("there is no vgg of {other} layers; there are 11, 13, 16 and 19");
            return Err(Error::Network(what));
        }
    };
    let (mut inputs, height, width) = parts.shape;
    if parts.large_classifier && (height, width) != (224, 224) {
        return Err(Error::Network(format!(
            "the classifier of a vgg with `model.imagenet_stem` is for pictures of 224x224, and these are of {height}x{width}; \
             leave `model.imagenet_stem` out for these"
        )));
    }
    if height < 32 || width < 32 {
        return Err(Error::Network(format!(
            "a picture of {height}x{width} is too small for a vgg, which halves it five times; 32x32 is the least"
        )));
    }
    let mut picture = (height, width);
    let mut layers = Stack { layers: Vec::new(), part: "features", number: 0 };
    for (count, outputs) in blocks.into_iter().zip([64, 128, 256, 512, 512]) {
        for _ in 0..count {
            let shape =
                nn::Conv2dShape { inputs, outputs, picture, kernel: 3, stride: 1, padding: 1, groups: 1 };
            let plane = picture.0 * picture.1;
            layers.push(Conv2d::new(shape).normal().with_bias(Init::Constant(0.0)));
            if parts.batch_norm {
                layers.push(BatchNorm::new(outputs, plane));
            }
            layers.push(Relu::new(outputs * plane));
            inputs = outputs;
        }
        let pool = PoolShape { channels: inputs, picture, window: 2, stride: 2, padding: 0 };
        layers.push(Pool::max(pool));
        picture = pool.output_picture();
    }
    let features = inputs * picture.0 * picture.1;
    let linear =
        |inputs, outputs| Linear::rows(1, (inputs, outputs), Init::Normal(0.01), Some(Init::Constant(0.0)));
    layers.part("classifier");
    if parts.large_classifier {
        for inputs in [features, HIDDEN] {
            layers.push(linear(inputs, HIDDEN));
            layers.push(Relu::new(HIDDEN));
            match parts.dropout > 0.0 {
                true => layers.push(Dropout::new(parts.dropout, HIDDEN)),
                // The number of a dropout is left out, so that the names do not depend on it.
                false => layers.number += 1,
            }
        }
        layers.push(linear(HIDDEN, parts.classes));
    } else {
        layers.push(linear(features, parts.classes));
    }
    Network::new(layers.layers)
}

/// Layers that are numbered within their part, as in an `nn.Sequential`.
struct Stack<F> {
    layers: Vec<(String, Box<dyn Layer<F>>)>,
    part: &'static str,
    number: usize,
}

impl<F: Float> Stack<F> {
    fn push(&mut self, layer: impl Layer<F> + 'static) {
        self.layers.push((format!("{}.{}", self.part, self.number), Box::new(layer)));
        self.number += 1;
    }

    /// Begins another part.
    fn part(&mut self, part: &'static str) {
        (self.part, self.number) = (part, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: Vgg = Vgg {
        layers: 16,
        batch_norm: false,
        large_classifier: true,
        dropout: 0.5,
        shape: (3, 224, 224),
        classes: 1000,
    };

    /// torchvision's parameter counts and names.
    #[test]
    fn published_sizes_and_names() {
        let count =
            |layers, batch_norm| vgg::<f32>(&Vgg { layers, batch_norm, ..PARTS }).unwrap().param_count();
        assert_eq!(count(11, false), 132_863_336);
        assert_eq!(count(13, false), 133_047_848);
        assert_eq!(count(16, false), 138_357_544);
        assert_eq!(count(19, false), 143_667_240);
        assert_eq!(count(16, true), 138_365_992);
        for dropout in [0.0, 0.5] {
            let network = vgg::<f32>(&Vgg { dropout, ..PARTS }).unwrap();
            let names: Vec<&str> = network.params().iter().map(|place| &*place.name).collect();
            assert_eq!(names[..3], ["features.0.weight", "features.0.bias", "features.2.weight"]);
            assert_eq!(
                names[names.len() - 3..],
                ["classifier.3.bias", "classifier.6.weight", "classifier.6.bias"]
            );
        }
    }

    #[test]
    fn small_pictures_have_one_linear_layer() {
        let small = Vgg {
            layers: 11,
            batch_norm: true,
            large_classifier: false,
            shape: (3, 32, 32),
            classes: 10,
            ..PARTS
        };
        assert_eq!(vgg::<f32>(&small).unwrap().param_count(), 9_231_114);
        let refused = |parts: Vgg| vgg::<f32>(&parts).err().unwrap().to_string();
        assert!(refused(Vgg { shape: (3, 31, 32), ..small }).contains("32x32 is the least"));
        assert!(refused(Vgg { large_classifier: true, ..small }).contains("for pictures of 224x224"));
        assert!(refused(Vgg { layers: 12, ..small }).contains("there are 11, 13, 16 and 19"));
    }
}
