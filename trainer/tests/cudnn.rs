//! cuDNN and Allfold compute the same output shape for every convolution of every model that ships. The oldest and the newest
//! cuDNN are called with Allfold's descriptors, without a GPU. If the Python wheels of cuDNN are missing, the test prints SKIP.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_cuda::launch::{Conv, TensorLayout};
use allfold_cuda::vendor::convolved;
use allfold_kernels::DType;
use allfold_kernels::nn::Conv2dShape;
use allfold_standin::abi::each;
use allfold_trainer::layers::LayerOperation;
use allfold_trainer::models::{MODELS, build};
use allfold_trainer::{Config, Network, SampleForm};

/// The samples of the digits, MNIST, CIFAR and ImageNet: channels, height, width, and whether resnets have the stem for large ones.
const SAMPLES: [((usize, usize, usize), bool); 4] =
    [((1, 8, 8), false), ((1, 28, 28), false), ((3, 32, 32), false), ((3, 224, 224), true)];

fn convolutions(model: &str, shape: (usize, usize, usize), imagenet_stem: bool) -> Vec<Conv2dShape> {
    let config = Config::default().with(|c| {
        c.model.name = model.into();
        c.model.imagenet_stem = imagenet_stem;
    });
    let network: Network<f32> = build(&config, SampleForm::new(shape, 10)).unwrap();
    let shapes = network.layers().iter().filter_map(|layer| match layer.operation() {
        LayerOperation::Conv { shape, .. } => Some(shape),
        _ => None,
    });
    shapes.collect()
}

fn agree(shape: &Conv2dShape, n: usize) -> usize {
    let (p, q) = shape.output_picture();
    let mut count = 0;
    for layout in [TensorLayout::Planes, TensorLayout::ChannelsLast] {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let conv = Conv {
                dtype,
                n,
                channels: shape.inputs,
                picture: shape.picture,
                filters: shape.outputs,
                side: shape.kernel,
                stride: shape.stride,
                padding: shape.padding,
                groups: shape.groups,
                layout,
            };
            assert_eq!(conv.output_picture().unwrap(), (p, q), "{conv:?}: the CPU's and the GPU's formula");
            assert_eq!(convolved(&conv), Ok([n, shape.outputs, p, q]), "{conv:?}");
            count += 1;
        }
    }
    count
}

#[test]
fn every_convolution_of_every_model_has_cudnns_shape() {
    let agreed = each("every_convolution_of_every_model_has_cudnns_shape", |cuda, _| {
        let (mut all, mut queried) = (0, 0);
        for (model, _) in MODELS {
            let mut own = 0;
            let (resnet, vgg) = (model.starts_with("resnet"), model.starts_with("vgg"));
            let takes = |shape: &(usize, usize, usize), stem: &bool| {
                (!stem || resnet || vgg) && (!vgg || shape.1 >= 32)
            };
            for (shape, stem) in SAMPLES.iter().filter(|(shape, stem)| takes(shape, stem)) {
                // Transformers take tokens, not pictures.
                let convolutions = if ["gpt", "bert", "llama"].contains(model) {
                    Vec::new()
                } else {
                    convolutions(model, *shape, *stem)
                };
                own += convolutions.len();
                queried += convolutions.iter().map(|shape| agree(shape, 1) + agree(shape, 32)).sum::<usize>();
            }
            assert_eq!(own == 0, ["mlp", "gpt", "bert", "llama"].contains(model), "convolutions of {model}");
            all += own;
        }
        println!("CUDA {cuda}: cuDNN has our shapes of all {all} convolutions, queried {queried} times");
    });
    agreed.unwrap();
}
