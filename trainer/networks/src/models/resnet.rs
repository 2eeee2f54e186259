//! Residual networks of 18, 34 and 50 layers (K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016).
//!
//! ```text
//! stem          cifar: conv 3x3                imagenet: conv 7x7, stride 2 - max pool 3x3, stride 2      64 channels
//! layer1..4     blocks of 64, 128, 256, 512 channels; the first block of layer2..4 halves the picture
//! basic block   x -conv 3x3-bn-relu-conv 3x3-bn-+-relu->            (18, 34)
//! bottleneck    x -conv 1x1-bn-relu-conv 3x3-bn-relu-conv 1x1-bn-+-relu->     four times the channels (50)
//!               '-------- or conv 1x1-bn, where shapes differ ----'
//! head          global mean pool - linear
//! ```
//!
//! Parameters have torchvision's names and order, so that its weights can be loaded.

use crate::layers::{Add, BatchNorm, Conv2d, GlobalMeanPool, Linear, Pool, Relu};
use crate::network::{Builder, Network};
use crate::{Error, Result};
use allfold_kernels::nn::{self, Float, PoolShape};

/// The parts of the network.
#[derive(Clone, Copy, Debug)]
pub struct ResNet {
    /// The number of layers: 18, 34 or 50.
    pub layers: usize,
    /// Whether the stem is the one for large pictures, which shrinks them fourfold.
    pub imagenet_stem: bool,
    /// Channels, height and width of a sample.
    pub shape: (usize, usize, usize),
    /// The number of classes.
    pub classes: usize,
}

/// A stretch of network under construction: the last activation and its shape.
struct Trunk<F> {
    builder: Builder<F>,
    at: usize,
    channels: usize,
    picture: (usize, usize),
}

impl<F: Float> Trunk<F> {
    /// Convolution and batch norm, named by their places in a block.
    fn conv(&mut self, names: (&str, &str), outputs: usize, kernel: usize, stride: usize) -> Result<()> {
        let shape = nn::Conv2dShape {
            inputs: self.channels,
            outputs,
            picture: self.picture,
            kernel,
            stride,
            padding: kernel / 2,
            groups: 1,
        };
        self.picture = shape.output_picture();
        self.channels = outputs;
        self.at = self.builder.push(names.0, Conv2d::new(shape).normal(), &[self.at])?;
        self.at = self.builder.push(names.1, BatchNorm::new(outputs, self.plane()), &[self.at])?;
        Ok(())
    }

    fn relu(&mut self, name: &str) -> Result<()> {
        self.at = self.builder.push(name, Relu::new(self.channels * self.plane()), &[self.at])?;
        Ok(())
    }

    fn plane(&self) -> usize {
        self.picture.0 * self.picture.1
    }

    /// A residual block; a bottleneck if `wide` is set.
    fn block(&mut self, name: &str, channels: usize, stride: usize, wide: bool) -> Result<()> {
        let (start, inputs, picture) = (self.at, self.channels, self.picture);
        let outputs = if wide { 4 * channels } else { channels };
        // The stride is the 3x3 convolution's, as in torchvision.
        let convs: &[(usize, usize, usize)] = match wide {
            true => &[(channels, 1, 1), (channels, 3, stride), (outputs, 1, 1)],
            false => &[(channels, 3, stride), (channels, 3, 1)],
        };
        for (i, &(outputs, kernel, stride)) in (1..).zip(convs) {
            if i > 1 {
                self.relu(&format!("{name}.relu{}", i - 1))?;
            }
            self.conv((&format!("{name}.conv{i}"), &format!("{name}.bn{i}")), outputs, kernel, stride)?;
        }
        let deep = (self.at, self.channels, self.picture);
        (self.at, self.channels, self.picture) = (start, inputs, picture);
        if stride > 1 || inputs != outputs {
            let names = (format!("{name}.downsample.0"), format!("{name}.downsample.1"));
            self.conv((&names.0, &names.1), outputs, 1, stride)?;
        }
        let short = self.at;
        (self.at, self.channels, self.picture) = deep;
        let add = Add::new(self.channels * self.plane());
        self.at = self.builder.push(&format!("{name}.add"), add, &[self.at, short])?;
        self.relu(&format!("{name}.relu"))
    }
}

/// Builds the network.
///
/// # Errors
/// If there is no ResNet with this number of layers, or the picture is too small for the stem.
pub fn resnet<F: Float>(parts: &ResNet) -> Result<Network<F>> {
    let (blocks, wide) = match parts.layers {
        18 => ([2, 2, 2, 2], false),
        34 => ([3, 4, 6, 3], false),
        50 => ([3, 4, 6, 3], true),
        other => {
            return Err(Error::Network(format!(
                "there is no resnet of {other} layers; there are 18, 34 and 50"
            )));
        }
    };
    let (channels, height, width) = parts.shape;
    let least = if parts.imagenet_stem { 32 } else { 8 };
    if height < least || width < least {
        return Err(Error::Network(format!(
            "a picture of {height}x{width} is too small for a resnet with this stem; {least}x{least} is the least"
        )));
    }
    let builder = Builder::new(channels * height * width);
    let mut trunk = Trunk { builder, at: 0, channels, picture: (height, width) };
    let (kernel, stride) = if parts.imagenet_stem { (7, 2) } else { (3, 1) };
    trunk.conv(("conv1", "bn1"), 64, kernel, stride)?;
    trunk.relu("relu")?;
    if parts.imagenet_stem {
        let pool = PoolShape { channels: 64, picture: trunk.picture, window: 3, stride: 2, padding: 1 };
        trunk.at = trunk.builder.push("maxpool", Pool::max(pool), &[trunk.at])?;
        trunk.picture = pool.output_picture();
    }
    for (stage, (count, channels)) in (1..).zip(blocks.into_iter().zip([64, 128, 256, 512])) {
        for block in 0..count {
            let stride = if stage > 1 && block == 0 { 2 } else { 1 };
            trunk.block(&format!("layer{stage}.{block}"), channels, stride, wide)?;
        }
    }
    let plane = trunk.plane();
    trunk.at = trunk.builder.push("avgpool", GlobalMeanPool::new(trunk.channels, plane), &[trunk.at])?;
    trunk.builder.push("fc", Linear::new(trunk.channels, parts.classes), &[trunk.at])?;
    trunk.builder.build(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// torchvision's parameter counts for 1,000 classes, and the count of the usual ResNet-18 for CIFAR-10.
    #[test]
    fn published_sizes() {
        let count = |layers, imagenet_stem, side, classes| {
            let shape = (3, side, side);
            resnet::<f32>(&ResNet { layers, imagenet_stem, shape, classes }).unwrap().param_count()
        };
        assert_eq!(count(18, true, 224, 1000), 11_689_512);
        assert_eq!(count(34, true, 224, 1000), 21_797_672);
        assert_eq!(count(50, true, 224, 1000), 25_557_032);
        assert_eq!(count(18, false, 32, 10), 11_173_962);
    }
}
