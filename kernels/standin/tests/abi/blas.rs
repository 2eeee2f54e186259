//! Comparison of the cuBLASLt declarations that `vendor/blas.rs` uses with NVIDIA's headers.

use crate::{enumerators, functions, structure};
use allfold_standin::abi::Assertions;
use cudarc::cublaslt::sys;

#[test]
fn cublas_lt_is_called_as_its_header_declares_it() {
    let mut all = Assertions::over(&["climits", "cublasLt.h"], &[]);
    functions!(
        all,
        cublasLtCreate(_),
        cublasLtDestroy(_),
        cublasLtGetVersion(),
        cublasLtMatrixLayoutCreate(_, _, _, _, _),
        cublasLtMatrixLayoutDestroy(_),
        cublasLtMatmulDescCreate(_, _, _),
        cublasLtMatmulDescDestroy(_),
        cublasLtMatmulDescSetAttribute(_, _, _, _),
        cublasLtMatmulPreferenceCreate(_),
        cublasLtMatmulPreferenceDestroy(_),
        cublasLtMatmulPreferenceSetAttribute(_, _, _, _),
        cublasLtMatmulAlgoGetHeuristic(_, _, _, _, _, _, _, _, _, _),
        cublasLtMatmul(_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _),
    );
    enumerators!(
        all,
        cublasStatus_t::CUBLAS_STATUS_SUCCESS,
        cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED,
        cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
        cudaDataType_t::CUDA_R_32F,
        cudaDataType_t::CUDA_R_16F,
        cudaDataType_t::CUDA_R_16BF,
        cublasComputeType_t::CUBLAS_COMPUTE_32F,
        cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
        cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB,
        cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE,
        cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
        cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
        cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
        cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
        cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX,
        cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DGELU,
        cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BGRADB,
        cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    );
    // Transposes are passed as 0 and 1, in 4 bytes.
    all.value("CUBLAS_OP_N", i64::from(i32::from(false)));
    all.value("CUBLAS_OP_T", i64::from(i32::from(true)));
    all.size("cublasOperation_t", size_of::<i32>());
    all.size("cublasLtEpilogue_t", size_of::<sys::cublasLtEpilogue_t>());
    structure!(all, cublasLtMatmulAlgo_t as "cublasLtMatmulAlgo_t" { data: 64 });
    structure!(all, cublasLtMatmulHeuristicResult_t as "cublasLtMatmulHeuristicResult_t" {
        algo: 64, workspaceSize: 8, state: 4, wavesCount: 4
    });
    crate::hold("cuBLASLt", all);
}
