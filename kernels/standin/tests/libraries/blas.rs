//! Tests that cuBLASLt accepts the descriptions of `vendor/blas.rs` and interprets them as intended: attributes in the sizes in which
//! they are set, row-major matrices as their column-major transposes.

use allfold_cuda::libraries::CudaLibrary;
use allfold_standin::abi::each;
use cudarc::cublaslt::{result, sys};
use std::ffi::c_void;
use std::fmt::Debug;
use sys::cublasStatus_t as Status;

type Attribute = sys::cublasLtMatmulDescAttributes_t;
type LayoutAttribute = sys::cublasLtMatrixLayoutAttribute_t;

fn set<T>(of: sys::cublasLtMatmulDesc_t, attribute: Attribute, value: T) -> Status {
    // SAFETY: the description is live, and `value` has the size that is passed.
    unsafe { sys::cublasLtMatmulDescSetAttribute(of, attribute, (&raw const value).cast(), size_of::<T>()) }
}

/// What `read` writes into a value, of whose bytes it gets the address, the number, and a place for how many it wrote; asserts that the
/// library writes as many bytes as the type has.
fn read<T: Default>(what: impl Debug, read: impl FnOnce(*mut c_void, usize, &mut usize) -> Status) -> T {
    let (mut value, mut wrote) = (T::default(), 0);
    let answer = read((&raw mut value).cast(), size_of::<T>(), &mut wrote);
    assert_eq!((answer, wrote), (Status::CUBLAS_STATUS_SUCCESS, size_of::<T>()), "{what:?}");
    value
}

fn get<T: Default>(of: sys::cublasLtMatmulDesc_t, attribute: Attribute) -> T {
    // SAFETY: the description is live, and the value has the size that is passed.
    read(attribute, |to, size, wrote| unsafe {
        sys::cublasLtMatmulDescGetAttribute(of, attribute, to, size, wrote)
    })
}

fn laid<T: Default>(of: sys::cublasLtMatrixLayout_t, attribute: LayoutAttribute) -> T {
    // SAFETY: the layout is live, and the value has the size that is passed.
    read(attribute, |to, size, wrote| unsafe {
        sys::cublasLtMatrixLayoutGetAttribute(of, attribute, to, size, wrote)
    })
}

fn products() {
    let kinds = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
    for (a, b, bias) in [(0i32, 0i32, None), (1, 0, Some(0x7f00_0000_1000u64)), (0, 1, None), (1, 1, None)] {
        let product = result::create_matmul_desc(kinds, sys::cudaDataType_t::CUDA_R_32F).unwrap();
        let good = Status::CUBLAS_STATUS_SUCCESS;
        assert_eq!(set(product, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, a), good);
        assert_eq!(set(product, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, b), good);
        if let Some(bias) = bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            assert_eq!(set(product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue), good);
            assert_eq!(set(product, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias), good);
            assert_eq!(get::<u64>(product, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER), bias);
            assert_eq!(get::<u32>(product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE), epilogue as u32);
        }
        type Kind = sys::cublasLtEpilogue_t;
        for epilogue in [Kind::CUBLASLT_EPILOGUE_GELU_AUX_BIAS, Kind::CUBLASLT_EPILOGUE_DGELU] {
            assert_eq!(set(product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue), good);
            let beside = 0x7f00_0000_2000u64;
            assert_eq!(set(product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, beside), good);
            assert_eq!(set(product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 24i64), good);
            assert_eq!(get::<i64>(product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD), 24);
        }
        let sums = Kind::CUBLASLT_EPILOGUE_BGRADB;
        assert_eq!(set(product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, sums), good);
        assert_eq!(get::<i32>(product, Attribute::CUBLASLT_MATMUL_DESC_TRANSA), a);
        assert_eq!(get::<i32>(product, Attribute::CUBLASLT_MATMUL_DESC_TRANSB), b);
        // A value of another size is refused, which shows that the assertions above can fail.
        assert_ne!(set(product, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, 0u8), good);
        assert_ne!(set(product, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, 0u32), good);
        // SAFETY: the description was made above and is destroyed once.
        unsafe { result::destroy_matmul_desc(product) }.unwrap();
    }
}

/// A row-major matrix of `rows` by `columns` is a column-major matrix of `columns` by `rows`: each column is a row of the row-major
/// matrix.
fn layouts() {
    use LayoutAttribute as A;
    for kind in
        [sys::cudaDataType_t::CUDA_R_32F, sys::cudaDataType_t::CUDA_R_16F, sys::cudaDataType_t::CUDA_R_16BF]
    {
        for (rows, columns) in [(1u64, 1u64), (64, 10), (768, 2304), (50_257, 768), (3, 1)] {
            let made = result::create_matrix_layout(kind, columns, rows, columns as i64).unwrap();
            assert_eq!(laid::<u64>(made, A::CUBLASLT_MATRIX_LAYOUT_ROWS), columns);
            assert_eq!(laid::<u64>(made, A::CUBLASLT_MATRIX_LAYOUT_COLS), rows);
            assert_eq!(laid::<i64>(made, A::CUBLASLT_MATRIX_LAYOUT_LD), columns as i64);
            assert_eq!(laid::<u32>(made, A::CUBLASLT_MATRIX_LAYOUT_TYPE), kind as u32);
            let by_columns = sys::cublasLtOrder_t::CUBLASLT_ORDER_COL as u32;
            assert_eq!(laid::<u32>(made, A::CUBLASLT_MATRIX_LAYOUT_ORDER), by_columns);
            // SAFETY: the layout was made above and is destroyed once.
            unsafe { result::destroy_matrix_layout(made) }.unwrap();
        }
    }
}

fn preferences() {
    use sys::cublasLtMatmulPreferenceAttributes_t as A;
    let preference = result::create_matmul_pref().unwrap();
    let set = |attribute, value: *const std::ffi::c_void, bytes| {
        // SAFETY: the preference is live, and `value` has the size that is passed.
        unsafe { result::set_matmul_pref_attribute(preference, attribute, value, bytes) }
    };
    let (limit, aligned) = (32u64 << 20, 128u32);
    set(A::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const limit).cast(), 8).unwrap();
    for attribute in [
        A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    ] {
        set(attribute, (&raw const aligned).cast(), 4).unwrap();
    }
    assert!(set(A::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const limit).cast(), 4).is_err());
    // SAFETY: the preference was made above and is destroyed once.
    unsafe { result::destroy_matmul_pref(preference) }.unwrap();
}

#[test]
fn cublas_lt_takes_our_descriptions() {
    let taken = each("blas::cublas_lt_takes_our_descriptions", |cuda, _| {
        CudaLibrary::CublasLt.load().expect("cuBLASLt");
        products();
        layouts();
        preferences();
        let handle = result::create_handle().map_err(|error| error.0);
        assert_eq!(handle.err(), Some(Status::CUBLAS_STATUS_NOT_INITIALIZED), "without a driver");
        println!("CUDA {cuda}: cuBLASLt takes our products, matrices and preferences");
    });
    taken.unwrap();
}
