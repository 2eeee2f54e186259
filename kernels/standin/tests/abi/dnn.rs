//! Comparison of the cuDNN declarations that `vendor/dnn.rs` uses with NVIDIA's headers.

use crate::{enumerators, functions, structure};
use allfold_standin::abi::Assertions;
use cudarc::cudnn::sys;

#[test]
fn cudnn_is_called_as_its_header_declares_it() {
    let mut all = Assertions::over(&["climits", "cudnn.h"], &[]);
    functions!(
        all,
        cudnnGetVersion(),
        cudnnCreate(_),
        cudnnDestroy(_),
        cudnnSetStream(_, _),
        cudnnCreateTensorDescriptor(_),
        cudnnDestroyTensorDescriptor(_),
        cudnnSetTensor4dDescriptor(_, _, _, _, _, _, _),
        cudnnCreateFilterDescriptor(_),
        cudnnDestroyFilterDescriptor(_),
        cudnnSetFilter4dDescriptor(_, _, _, _, _, _, _),
        cudnnCreateConvolutionDescriptor(_),
        cudnnDestroyConvolutionDescriptor(_),
        cudnnSetConvolution2dDescriptor(_, _, _, _, _, _, _, _, _),
        cudnnSetConvolutionGroupCount(_, _),
        cudnnSetConvolutionMathType(_, _),
        cudnnGetConvolution2dForwardOutputDim(_, _, _, _, _, _, _),
    );
    functions!(
        all,
        cudnnFindConvolutionForwardAlgorithm(_, _, _, _, _, _, _, _),
        cudnnFindConvolutionBackwardDataAlgorithm(_, _, _, _, _, _, _, _),
        cudnnFindConvolutionBackwardFilterAlgorithm(_, _, _, _, _, _, _, _),
        cudnnGetConvolutionForwardAlgorithm_v7(_, _, _, _, _, _, _, _),
        cudnnGetConvolutionBackwardDataAlgorithm_v7(_, _, _, _, _, _, _, _),
        cudnnGetConvolutionBackwardFilterAlgorithm_v7(_, _, _, _, _, _, _, _),
        cudnnConvolutionForward(_, _, _, _, _, _, _, _, _, _, _, _, _),
        cudnnConvolutionBackwardData(_, _, _, _, _, _, _, _, _, _, _, _, _),
        cudnnConvolutionBackwardFilter(_, _, _, _, _, _, _, _, _, _, _, _, _),
    );
    enumerators!(
        all,
        cudnnStatus_t::CUDNN_STATUS_SUCCESS,
        cudnnStatus_t::CUDNN_STATUS_NOT_INITIALIZED,
        cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED,
        cudnnDataType_t::CUDNN_DATA_FLOAT,
        cudnnDataType_t::CUDNN_DATA_HALF,
        cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
        cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
        cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
        cudnnMathType_t::CUDNN_FMA_MATH,
        cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        cudnnDeterminism_t::CUDNN_NON_DETERMINISTIC,
        cudnnDeterminism_t::CUDNN_DETERMINISTIC,
    );
    structure!(all, cudnnConvolutionFwdAlgoPerf_t as "cudnnConvolutionFwdAlgoPerf_t" {
        algo: 4, status: 4, time: 4, memory: 8, determinism: 4, mathType: 4
    });
    structure!(all, cudnnConvolutionBwdDataAlgoPerf_t as "cudnnConvolutionBwdDataAlgoPerf_t" {
        algo: 4, status: 4, time: 4, memory: 8, determinism: 4, mathType: 4
    });
    structure!(all, cudnnConvolutionBwdFilterAlgoPerf_t as "cudnnConvolutionBwdFilterAlgoPerf_t" {
        algo: 4, status: 4, time: 4, memory: 8, determinism: 4, mathType: 4
    });
    crate::hold("cuDNN", all);
}
