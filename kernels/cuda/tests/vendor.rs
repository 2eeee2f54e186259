//! NVIDIA's libraries where they are missing.
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_cuda::libraries::CudaLibrary;
use allfold_cuda::vendor::version;

#[test]
fn without_a_library_the_error_contains_a_remedy() {
    for library in [CudaLibrary::CublasLt, CudaLibrary::Cudnn] {
        match version(library) {
            Ok((major, ..)) => assert!(major >= 9),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(library.name()) && text.contains(library.how_to_get()), "{text}");
                assert!(!text.contains('\n'), "{text}");
            }
        }
    }
    assert!(version(CudaLibrary::Driver).is_err());
}
