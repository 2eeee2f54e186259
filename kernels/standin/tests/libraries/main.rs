//! Tests of NVIDIA's own libraries, the oldest and the newest supported versions, as far as they work without a driver: they are
//! found and loaded, accept Allfold's descriptions, and compute the same shapes.
//!
//! Each test runs in one process per CUDA version; where the wheels are missing it prints SKIP.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod blas;
mod dnn;

use allfold_cuda::libraries::CudaLibrary;
use allfold_cuda::{Family, compile_ptx, nvrtc_version, vendor};
use allfold_kernels::DType;
use allfold_standin::abi::each;

/// The library versions that scripts/install-cuda-libraries.sh installs.
fn installed(cuda: u32, library: CudaLibrary) -> (usize, usize, usize) {
    match (cuda, library) {
        (12, CudaLibrary::CublasLt) => (12, 1, 3),
        (12, _) => (9, 1, 0),
        (_, CudaLibrary::CublasLt) => (13, 10, 0),
        _ => (9, 28, 1),
    }
}

#[test]
fn wheels_are_found_and_loaded() {
    let found = each("wheels_are_found_and_loaded", |cuda, folder| {
        // Paths are compared after the virtual environment's link is resolved.
        let inside = |path: &std::path::Path| std::fs::canonicalize(path).unwrap().starts_with(folder);
        for library in [CudaLibrary::CublasLt, CudaLibrary::Cudnn, CudaLibrary::Nccl] {
            let located = library.locate().unwrap_or_else(|| panic!("no {}", library.name()));
            assert!(inside(&located), "{} is {}", library.name(), located.display());
            assert_eq!(library.load(), Some(&*located), "{}", library.name());
        }
        for library in [CudaLibrary::CublasLt, CudaLibrary::Cudnn] {
            assert_eq!(vendor::version(library), Ok(installed(cuda, library)), "{}", library.name());
        }
        let nvrtc = CudaLibrary::Nvrtc.load().expect("NVRTC");
        let version = nvrtc_version().unwrap();
        // The NVRTC that other tests use is found first where it is installed.
        if inside(nvrtc) {
            assert_eq!(version, if cuda == 12 { (12, 1) } else { (13, 0) });
        }
        for family in Family::ALL {
            let ptx = compile_ptx(*family, Some(DType::F32), 80).unwrap();
            assert!(ptx.contains(".target sm_80"), "{}", family.file());
        }
        println!(
            "CUDA {cuda}: {} found and loaded, NVRTC {version:?} compiles every family of kernels",
            CudaLibrary::ALL[1..].iter().map(|library| library.name()).collect::<Vec<_>>().join(", ")
        );
        // The wheels contain no driver, so further calls cannot be tested.
        assert_eq!(CudaLibrary::Driver.locate().filter(|path| inside(path)), None);
    });
    found.unwrap();
}
