//! The functions of the cuBLASLt library that fits the driver.

use crate::libraries::CudaLibrary;
use crate::symbols::symbols;
use crate::{Error, Result};
use cudarc::cublaslt::sys::*;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

symbols! {
    /// cuBLASLt's functions.
    CublasLt of cudarc::cublaslt::sys {
        cublasLtGetVersion() -> usize;
        cublasLtCreate(*mut cublasLtHandle_t) -> cublasStatus_t;
        cublasLtMatrixLayoutCreate(*mut cublasLtMatrixLayout_t, cudaDataType, u64, u64, i64) -> cublasStatus_t;
        cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) -> cublasStatus_t;
        cublasLtMatmulDescCreate(*mut cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType_t) -> cublasStatus_t;
        cublasLtMatmulDescSetAttribute(
            cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, *const c_void, usize,
        ) -> cublasStatus_t;
        cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) -> cublasStatus_t;
        cublasLtMatmulPreferenceCreate(*mut cublasLtMatmulPreference_t) -> cublasStatus_t;
        cublasLtMatmulPreferenceSetAttribute(
            cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, *const c_void, usize,
        ) -> cublasStatus_t;
        cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) -> cublasStatus_t;
        cublasLtMatmulAlgoGetHeuristic(
            cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, c_int,
            *mut cublasLtMatmulHeuristicResult_t, *mut c_int,
        ) -> cublasStatus_t;
        cublasLtMatmul(
            cublasLtHandle_t, cublasLtMatmulDesc_t, *const c_void, *const c_void, cublasLtMatrixLayout_t,
            *const c_void, cublasLtMatrixLayout_t, *const c_void, *const c_void, cublasLtMatrixLayout_t,
            *mut c_void, cublasLtMatrixLayout_t, *const cublasLtMatmulAlgo_t, *mut c_void, usize, cudaStream_t,
        ) -> cublasStatus_t;
    }
}

/// cuBLASLt's functions, looked up once for the process.
pub(super) fn cublas_lt() -> Result<&'static CublasLt> {
    static FOUND: OnceLock<Result<CublasLt>> = OnceLock::new();
    let missing = |looked_for: String| Error::Missing { library: CudaLibrary::CublasLt, looked_for };
    let find = || {
        let path = CudaLibrary::CublasLt.load();
        let path =
            path.ok_or_else(|| missing(format!("no {}", CudaLibrary::CublasLt.files().join(" or "))))?;
        CublasLt::open(path).map_err(missing)
    };
    FOUND.get_or_init(find).as_ref().map_err(Error::clone)
}
