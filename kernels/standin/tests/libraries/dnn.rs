//! Tests that cuDNN computes the same output shapes of convolutions as Allfold, from Allfold's descriptors.

use allfold_cuda::launch::{Conv, TensorLayout};
use allfold_cuda::vendor::convolved;
use allfold_kernels::DType;
use allfold_standin::abi::each;

/// Convolutions by samples, channels, height, width, filters, side, stride, padding, groups.
const SHAPES: [[usize; 9]; 8] = [
    [1, 1, 1, 1, 1, 1, 1, 0, 1],
    [8, 3, 224, 224, 64, 7, 2, 3, 1],
    [2, 16, 33, 18, 32, 3, 2, 1, 1],
    [4, 64, 9, 9, 64, 3, 3, 0, 1],
    [3, 12, 7, 11, 24, 5, 2, 4, 1],
    [2, 12, 8, 8, 24, 3, 1, 1, 4],
    [5, 32, 14, 14, 32, 3, 2, 1, 32],
    [7, 256, 56, 56, 512, 1, 2, 0, 1],
];

#[test]
fn cudnn_computes_the_shapes_that_we_do() {
    let computed = each("dnn::cudnn_computes_the_shapes_that_we_do", |cuda, _| {
        let mut count = 0;
        for [n, channels, h, w, filters, side, stride, padding, groups] in SHAPES {
            for layout in [TensorLayout::Planes, TensorLayout::ChannelsLast] {
                for dtype in [DType::F32, DType::F16, DType::Bf16] {
                    let picture = (h, w);
                    let conv =
                        Conv { dtype, n, channels, picture, filters, side, stride, padding, groups, layout };
                    let (p, q) = conv.output_picture().unwrap();
                    assert_eq!(convolved(&conv), Ok([n, filters, p, q]), "{conv:?}");
                    count += 1;
                }
            }
        }
        // Groups that do not divide the filters: cuDNN refuses the shape, or computes a different output shape.
        let [n, channels, h, w, filters, side, stride, padding, _] = SHAPES[2];
        let (dtype, layout, groups) = (DType::F32, TensorLayout::Planes, 5);
        let wrong =
            Conv { dtype, n, channels, picture: (h, w), filters, side, stride, padding, groups, layout };
        assert!(convolved(&wrong).is_err());
        println!("CUDA {cuda}: cuDNN has our shapes of {count} convolutions");
    });
    computed.unwrap();
}
